package node

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/pkg/v3/runtime"

	"github.com/latchkey-db/latchkey/internal/datadir"
)

// know registers what a node knows without being told: its files, and the cluster's nodes.
// reached reports whether calls to another node are carried now.
func (m *metrics) know(self uint64, nodes []datadir.Member, reached func(node uint64) bool) error {
	all := []prometheus.Collector{
		openFiles("used", "Open file descriptors of this process.", runtime.FDUsage),
		openFiles("limit", "The most that it may have open.", runtime.FDLimit),
	}
	for _, n := range nodes {
		labels := prometheus.Labels{"Local": strconv.FormatUint(self, 16), "Remote": strconv.FormatUint(n.ID, 16)}
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "etcd", Subsystem: "network", Name: "known_peers", ConstLabels: labels,
			Help: "Nodes of the cluster, each 1.",
		}, func() float64 { return 1 }))
		if n.ID == self {
			continue
		}
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "etcd", Subsystem: "network", Name: "active_peers", ConstLabels: labels,
			Help: "Other nodes, 1 for one that is reached.",
		}, func() float64 {
			if reached(n.ID) {
				return 1
			}
			return 0
		}))
	}
	for _, c := range all {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
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
