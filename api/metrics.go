package api

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// options returns the name and help of a metric under etcd's names.
func options(subsystem, name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help}
}

// nodeMetrics are what etcd's dashboards and alerts read of a node's state, under
// etcd's names. They are looked up when they are asked for.
func nodeMetrics(c *Config) []prometheus.Collector {
	first := c.Cluster.Term()
	gauge := func(subsystem, name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(options(subsystem, name, help)), value)
	}
	info := func(subsystem, name, help, label, value string) prometheus.Collector {
		o := prometheus.GaugeOpts(options(subsystem, name, help))
		o.ConstLabels = prometheus.Labels{label: value}
		return prometheus.NewGaugeFunc(o, func() float64 { return 1 })
	}
	return []prometheus.Collector{
		gauge("server", "has_leader", "Whether there is a leader: 1 or 0.",
			func() float64 { return truth(c.Cluster.Leader() != 0) }),
		gauge("server", "is_leader", "Whether this node leads: 1 or 0.",
			func() float64 { return truth(c.Cluster.Leader() == c.Cluster.MemberID()) }),
		gauge("server", "is_learner", "Whether this node is a learner: 1 or 0.",
			func() float64 { return truth(c.Cluster.IsLearner()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts(
			options("server", "leader_changes_seen_total", "Changes of the leader that this process has seen.")),
			func() float64 { return float64(c.Cluster.Term() - first + 1) }),
		gauge("server", "quota_backend_bytes", "Size at which writes stop, in bytes.",
			func() float64 { return float64(c.QuotaBytes) }),
		info("server", "id", "The node's id, in hexadecimal.", "server_id", strconv.FormatUint(c.Cluster.MemberID(), 16)),
		info("server", "version", "The version of etcd whose API is served.", "server_version", ServerVersion),
		info("server", "go_version", "The version of Go.", "server_go_version", runtime.Version()),
		info("cluster", "version", "The version that all nodes understand.", "cluster_version", clusterVersionShort),
		gauge("mvcc", "db_total_size_in_bytes", "Logical size of all retained versions, in bytes.",
			func() float64 { return float64(c.Maintenance.DBSize()) }),
		gauge("mvcc", "db_total_size_in_use_in_bytes", "Logical size of the current versions, in bytes.",
			func() float64 { return float64(c.Maintenance.Status().DBSizeInUse) }),
		gauge("debugging_mvcc", "current_revision", "The newest revision that this node knows.",
			func() float64 { return float64(c.Maintenance.Revision()) }),
		gauge("debugging_auth", "revision", "The revision of the users and roles that this node knows.",
			func() float64 { return authRevision(c.Users) }),
	}
}

// authRevision returns 0 where there is none to be had: a node that is stopping.
func authRevision(users Users) float64 {
	state, err := users.Users(context.Background())
	if err != nil {
		return 0
	}
	return float64(state.Revision)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// watchMetrics count the open watches and what was sent to them.
type watchMetrics struct {
	streams, watchers prometheus.Gauge
	events            prometheus.Counter
}

func newWatchMetrics() *watchMetrics {
	const subsystem = "debugging_mvcc"
	return &watchMetrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts(
			options(subsystem, "watch_stream_total", "Watch streams that are open."))),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts(
			options(subsystem, "watcher_total", "Watches that are open."))),
		events: prometheus.NewCounter(prometheus.CounterOpts(
			options(subsystem, "events_total", "Events that were sent to watches."))),
	}
}

// maintenanceMetrics measure the long calls of the Maintenance service.
type maintenanceMetrics struct {
	defragmenting prometheus.Gauge
	defragment    prometheus.Histogram
	snapshot      prometheus.Histogram
}

func newMaintenanceMetrics() *maintenanceMetrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "etcd", Subsystem: "disk", Name: name, Help: help, Buckets: buckets,
		})
	}
	return &maintenanceMetrics{
		defragmenting: prometheus.NewGauge(prometheus.GaugeOpts(
			options("disk", "defrag_inflight", "Defragmentations that run."))),
		defragment: histogram("backend_defrag_duration_seconds", "The time that defragmentations take.",
			prometheus.ExponentialBuckets(.1, 2, 13)),
		snapshot: histogram("backend_snapshot_duration_seconds", "The time that backups take, until the last byte is sent.",
			prometheus.ExponentialBuckets(.01, 2, 17)),
	}
}

// since observes the time since began.
func since(h prometheus.Histogram, began time.Time) { h.Observe(time.Since(began).Seconds()) }

const (
	// maxClientVersions bounds the versions of clients that are told apart, and
	// maxVersionLength their length: clients send what they like.
	maxClientVersions, maxVersionLength = 32, 32

	// noVersion and otherVersion stand for clients that send none, and for those
	// beyond the bounds.
	noVersion, otherVersion = "unknown", "other"
)

// clientMetrics count calls by the version of the client that makes them.
type clientMetrics struct {
	requests *prometheus.CounterVec

	mu sync.Mutex
	// known are the versions that are told apart; mu protects it.
	known map[string]bool
}

func newClientMetrics() *clientMetrics {
	return &clientMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(
			options("server", "client_requests_total", "Calls by the version of the client.")),
			[]string{"type", "client_api_version"}),
		known: make(map[string]bool),
	}
}

// count counts a call of a kind, "unary" or "stream".
func (m *clientMetrics) count(kind, version string) {
	m.requests.WithLabelValues(kind, m.label(version)).Inc()
}

// label returns what a client of this version is counted under.
func (m *clientMetrics) label(version string) string {
	if len(version) > maxVersionLength {
		return otherVersion
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known[version] {
		if len(m.known) >= maxClientVersions {
			return otherVersion
		}
		m.known[version] = true
	}
	return version
}

// registerMetrics registers what is measured here.
func (s *Server) registerMetrics() error {
	all := append(nodeMetrics(&s.config),
		s.watches.streams, s.watches.watchers, s.watches.events,
		s.upkeep.defragmenting, s.upkeep.defragment, s.upkeep.snapshot,
		s.clients.requests, s.times.seconds)
	for _, m := range all {
		if err := s.config.Metrics.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
