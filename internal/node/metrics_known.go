package node

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/pkg/v3/runtime"
)

// know registers what a node knows without being told: its files, and the cluster's nodes.
// reached reports whether calls to another node are carried now.
func (m *metrics) know(members *membership, reached func(node uint64) bool) error {
	for _, c := range []prometheus.Collector{
		openFiles("used", "Open file descriptors of this process.", runtime.FDUsage),
		openFiles("limit", "The most that it may have open.", runtime.FDLimit),
		knownPeers{members, reached},
	} {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

var (
	peerLabels = []string{"Local", "Remote"}
	knownDesc  = prometheus.NewDesc("etcd_network_known_peers", "Nodes of the cluster, each 1.", peerLabels, nil)
	activeDesc = prometheus.NewDesc("etcd_network_active_peers", "Other nodes, 1 for one that is reached.", peerLabels, nil)
)

// knownPeers tells of the nodes that are members now.
type knownPeers struct {
	members *membership
	reached func(node uint64) bool
}

// Describe names the metrics.
func (knownPeers) Describe(to chan<- *prometheus.Desc) {
	to <- knownDesc
	to <- activeDesc
}

// Collect tells their values.
func (k knownPeers) Collect(to chan<- prometheus.Metric) {
	self := strconv.FormatUint(k.members.self, 16)
	for _, id := range k.members.nodes() {
		name := strconv.FormatUint(id, 16)
		to <- prometheus.MustNewConstMetric(knownDesc, prometheus.GaugeValue, 1, self, name)
		if id == k.members.self {
			continue
		}
		active := 0.0
		if k.reached(id) {
			active = 1
		}
		to <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, active, self, name)
	}
}

// openFiles is a gauge of file descriptors, 0 where the system does not tell.
func openFiles(name, help string, count func() (uint64, error)) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "os", Subsystem: "fd", Name: name, Help: help}, func() float64 {
		n, err := count()
		if err != nil {
			return 0
		}
		return float64(n)
	})
}
