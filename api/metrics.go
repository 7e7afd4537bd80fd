package api

import (
	"fmt"
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// nodeMetrics are what etcd's dashboards and alerts read of a node's state, under
// etcd's names. They are looked up when they are asked for.
func nodeMetrics(c *Config) []prometheus.Collector {
	first := c.Cluster.Term()
	opts := func(subsystem, name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(subsystem, name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(subsystem, name, help)), value)
	}
	counter := func(subsystem, name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts(opts(subsystem, name, help)), value)
	}
	info := func(name, help, label, value string) prometheus.Collector {
		o := prometheus.GaugeOpts(opts("server", name, help))
		o.ConstLabels = prometheus.Labels{label: value}
		return prometheus.NewGaugeFunc(o, func() float64 { return 1 })
	}
	return []prometheus.Collector{
		gauge("server", "has_leader", "Whether there is a leader: 1 or 0.",
			func() float64 { return truth(c.Cluster.Leader() != 0) }),
		gauge("server", "is_leader", "Whether this node leads: 1 or 0.",
			func() float64 { return truth(c.Cluster.Leader() == c.Cluster.MemberID()) }),
		gauge("server", "is_learner", "Whether this node is a learner: always 0.",
			func() float64 { return 0 }),
		counter("server", "leader_changes_seen_total", "Changes of the leader that this process has seen.",
			func() float64 { return float64(c.Cluster.Term() - first + 1) }),
		gauge("server", "proposals_committed_total", "Index of the last committed entry of the system shard's log.",
			func() float64 { return float64(c.Maintenance.Status().RaftIndex) }),
		gauge("server", "proposals_applied_total", "Index of the last applied entry of the system shard's log.",
			func() float64 { return float64(c.Maintenance.Status().RaftAppliedIndex) }),
		gauge("server", "quota_backend_bytes", "Size at which writes stop, in bytes.",
			func() float64 { return float64(c.QuotaBytes) }),
		info("id", "The node's id, in hexadecimal.", "server_id", strconv.FormatUint(c.Cluster.MemberID(), 16)),
		info("version", "The version of etcd whose API is served.", "server_version", ServerVersion),
		info("go_version", "The version of Go.", "server_go_version", runtime.Version()),
		clusterVersion(),
		gauge("mvcc", "db_total_size_in_bytes", "Logical size of all retained versions, in bytes.",
			func() float64 { return float64(c.Maintenance.DBSize()) }),
		gauge("mvcc", "db_total_size_in_use_in_bytes", "Logical size of the current versions, in bytes.",
			func() float64 { return float64(c.Maintenance.Status().DBSizeInUse) }),
		gauge("debugging_mvcc", "current_revision", "The newest revision that this node knows.",
			func() float64 { return float64(c.Maintenance.Revision()) }),
	}
}

func clusterVersion() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "etcd", Subsystem: "cluster", Name: "version", Help: "The version that all nodes understand.",
		ConstLabels: prometheus.Labels{"cluster_version": clusterVersionShort},
	}, func() float64 { return 1 })
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// watchMetrics count the open watches.
type watchMetrics struct{ streams, watchers prometheus.Gauge }

func newWatchMetrics() *watchMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "etcd", Subsystem: "debugging_mvcc", Name: name, Help: help,
		})
	}
	return &watchMetrics{
		streams:  gauge("watch_stream_total", "Watch streams that are open."),
		watchers: gauge("watcher_total", "Watches that are open."),
	}
}

// registerMetrics registers what is measured here.
func (s *Server) registerMetrics() error {
	for _, m := range append(nodeMetrics(&s.config), s.watches.streams, s.watches.watchers) {
		if err := s.config.Metrics.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
