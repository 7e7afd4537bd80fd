package node

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// Above these something is slow: as in etcd a tenth of a second for a command, and
// for a proof of leadership the time after which etcd sends its own again.
const (
	slowApply   = 100 * time.Millisecond
	slowConfirm = 500 * time.Millisecond
)

// metrics are what a node measures of the layers below the API, under etcd's names,
// types and buckets.
type metrics struct {
	registry *prometheus.Registry

	fsync, commit          prometheus.Histogram
	logBytes, loading      prometheus.Gauge
	apply                  *prometheus.HistogramVec
	slowApplies            prometheus.Counter
	failedProposals        prometheus.Counter
	slowReads, failedReads prometheus.Counter
	granted, revoked       prometheus.Counter
	renewed, expired       prometheus.Counter
	ttls                   prometheus.Histogram
	sweepPause, sweepTotal prometheus.Histogram
	lastSweep              prometheus.Gauge
}

var (
	_ raft.Observer  = (*metrics)(nil)
	_ shard.Observer = (*metrics)(nil)
)

// newMetrics returns metrics in a registry of the node's own, beside those of the
// process and of the Go runtime: an etcd in the same process would have the default
// one.
func newMetrics() *metrics {
	counter := func(namespace, subsystem, name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	histogram := func(namespace, subsystem, name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
		})
	}
	const etcd, debugging = "etcd", "etcd_debugging"
	plain := func(subsystem, name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: etcd, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &metrics{
		logBytes: plain("disk", "wal_write_bytes_total", "Bytes of the entries written to the Raft logs."),
		loading:  plain("server", "snapshot_apply_in_progress_total", "Replicas that load a snapshot from another node."),
		registry: prometheus.NewRegistry(),
		fsync: histogram(etcd, "disk", "wal_fsync_duration_seconds",
			"The time that writes of the Raft log take, fsync included.", prometheus.ExponentialBuckets(0.001, 2, 14)),
		commit: histogram(etcd, "disk", "backend_commit_duration_seconds",
			"The time that commits of applied commands to the state take.", prometheus.ExponentialBuckets(0.001, 2, 14)),
		apply: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: etcd, Subsystem: "server", Name: "apply_duration_seconds",
			Help: "The time that commands take to apply.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}, []string{"version", "op", "success"}),
		slowApplies: counter(etcd, "server", "slow_apply_total", "Commands that took more than 100 ms to apply."),
		failedProposals: counter(etcd, "server", "proposals_failed_total",
			"Commands that were not applied, or whose caller did not wait for that."),
		slowReads:   counter(etcd, "server", "slow_read_indexes_total", "Proofs of leadership that took more than 500 ms."),
		failedReads: counter(etcd, "server", "read_indexes_failed_total", "Proofs of leadership that failed."),
		granted:     counter(debugging, "lease", "granted_total", "Leases that were granted."),
		revoked:     counter(debugging, "lease", "revoked_total", "Leases that ended, revoked or expired."),
		renewed:     counter(debugging, "lease", "renewed_total", "Renewals of leases."),
		expired:     counter(debugging, "server", "lease_expired_total", "Leases that expired."),
		ttls: histogram(debugging, "lease", "ttl_total",
			"The TTLs of the leases granted, in seconds.", prometheus.ExponentialBuckets(1, 2, 24)),
		sweepPause: histogram(debugging, "mvcc", "db_compaction_pause_duration_milliseconds",
			"The longest step of each removal of compacted versions, in milliseconds.", prometheus.ExponentialBuckets(1, 2, 13)),
		sweepTotal: histogram(debugging, "mvcc", "db_compaction_total_duration_milliseconds",
			"The time that removals of compacted versions take, in milliseconds.", prometheus.ExponentialBuckets(100, 2, 14)),
		lastSweep: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: debugging, Subsystem: "mvcc", Name: "db_compaction_last",
			Help: "The unix time of the last removal of compacted versions, 0 for none since the start.",
		}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.fsync, m.logBytes, m.loading, m.commit, m.apply, m.slowApplies, m.failedProposals, m.slowReads, m.failedReads,
		m.granted, m.revoked, m.renewed, m.expired, m.ttls, m.sweepPause, m.sweepTotal, m.lastSweep,
	)
	return m
}

// LogSaved measures a write of the Raft log.
func (m *metrics) LogSaved(bytes int, took time.Duration) {
	m.logBytes.Add(float64(bytes))
	m.fsync.Observe(took.Seconds())
}

// SnapshotLoading counts the replicas that load a snapshot.
func (m *metrics) SnapshotLoading(begun bool) {
	if begun {
		m.loading.Inc()
	} else {
		m.loading.Dec()
	}
}

// StateCommitted measures a commit to the state.
func (m *metrics) StateCommitted(took time.Duration) { m.commit.Observe(took.Seconds()) }

// Applied measures a command.
func (m *metrics) Applied(operation string, rejected bool, took time.Duration) {
	m.apply.WithLabelValues("v3", operation, strconv.FormatBool(!rejected)).Observe(took.Seconds())
	if took > slowApply {
		m.slowApplies.Inc()
	}
}

// ProposalFailed counts a command that failed.
func (m *metrics) ProposalFailed() { m.failedProposals.Inc() }

// Confirmed counts a proof of leadership that was slow or failed.
func (m *metrics) Confirmed(took time.Duration, err error) {
	if took > slowConfirm {
		m.slowReads.Inc()
	}
	if err != nil {
		m.failedReads.Inc()
	}
}

// LeaseGranted counts a grant.
func (m *metrics) LeaseGranted(ttl int64) {
	m.granted.Inc()
	m.ttls.Observe(float64(ttl))
}

// LeasesEnded counts the ends of leases.
func (m *metrics) LeasesEnded(all, expired int) {
	m.revoked.Add(float64(all))
	m.expired.Add(float64(expired))
}

// LeaseRenewed counts a renewal.
func (m *metrics) LeaseRenewed() { m.renewed.Inc() }

// Swept measures a removal of compacted versions.
func (m *metrics) Swept(took, longest time.Duration) {
	m.sweepPause.Observe(float64(longest.Milliseconds()))
	m.sweepTotal.Observe(float64(took.Milliseconds()))
	m.lastSweep.SetToCurrentTime()
}

// withoutVote is 1 for a replica that has no vote, by what it has applied.
func withoutVote(r *raft.Replica) float64 {
	if _, voters := r.Voters(); voters[r.ReplicaID()] == "" {
		return 1
	}
	return 0
}

// follow registers what is looked up in the shards when it is asked for: the sums
// over those of this node.
func (m *metrics) follow(cluster *system.Cluster, shards map[uint64]*shard.Data) error {
	replicas := func(value func(*raft.Replica) float64) func() float64 {
		return func() float64 {
			sum := value(cluster.Replica())
			for _, d := range shards {
				sum += value(d.Replica())
			}
			return sum
		}
	}
	stores := func(value func(mvcc.Stats) int64) func() float64 {
		return func() float64 {
			var sum int64
			for _, d := range shards {
				sum += value(d.Store().Stats())
			}
			return float64(sum)
		}
	}
	unsettled := func(add func(sum float64, u shard.Unsettled) float64) func() float64 {
		return func() (sum float64) {
			for _, d := range shards {
				sum = add(sum, d.Unsettled())
			}
			return sum
		}
	}
	applied := replicas(func(r *raft.Replica) float64 { return float64(r.Applied()) })
	committed := replicas(func(r *raft.Replica) float64 { return float64(r.Committed()) })
	for _, c := range []prometheus.Collector{
		// What is committed is applied by the time that anybody here hears of it.
		gauge("server_proposals_committed_total", "Entries committed, over all logs that this node has.", committed),
		gauge("server_proposals_applied_total", "Entries applied, over all logs that this node has.", applied),
		gauge("server_proposals_pending", "Commands that wait for the log or are under way.",
			replicas(func(r *raft.Replica) float64 { return float64(r.Pending()) })),
		ownGauge("shards_led", "Data shards that this node leads.", func() float64 {
			led := 0
			for _, d := range shards {
				if d.Replica().Serving() != 0 {
					led++
				}
			}
			return float64(led)
		}),
		ownGauge("replicas_without_vote", "Replicas of this node that follow without a vote, the system shard's among them.",
			replicas(withoutVote)),
		ownGauge("cluster_version", "The version of formats that all nodes speak.",
			func() float64 { return float64(cluster.State().Cluster.Version) }),
		ownGauge("transactions_holding", "Transactions over several shards that hold keys, counted in each shard.",
			unsettled(func(sum float64, u shard.Unsettled) float64 { return sum + float64(u.Holds) })),
		ownGauge("transactions_holding_oldest_seconds", "For how long the oldest of them has held keys on this node.",
			unsettled(func(sum float64, u shard.Unsettled) float64 { return max(sum, u.Oldest.Seconds()) })),
		ownGauge("transactions_unfinished", "Transactions that are committed and that a shard has perhaps still to finish.",
			unsettled(func(sum float64, u shard.Unsettled) float64 { return sum + float64(u.Unfinished) })),
		counter("mvcc_put_total", "Puts, those of transactions among them.",
			stores(func(s mvcc.Stats) int64 { return s.Puts })),
		counter("mvcc_delete_total", "Deletes, those of transactions among them.",
			stores(func(s mvcc.Stats) int64 { return s.Deletes })),
		counter("mvcc_range_total", "Ranges, those of transactions among them.",
			stores(func(s mvcc.Stats) int64 { return s.Ranges })),
		counter("mvcc_txn_total", "Transactions of more than one operation.",
			stores(func(s mvcc.Stats) int64 { return s.Txns })),
		gauge("debugging_mvcc_total_put_size_in_bytes", "Bytes of the keys and values put.",
			stores(func(s mvcc.Stats) int64 { return s.PutBytes })),
		gauge("debugging_mvcc_keys_total", "Current keys.",
			stores(func(s mvcc.Stats) int64 { return s.Keys })),
		gauge("debugging_mvcc_slow_watcher_total", "Watches that read history.",
			stores(func(s mvcc.Stats) int64 { return s.Lagging })),
		gauge("debugging_mvcc_pending_events_total", "Events that wait to be sent.",
			stores(func(s mvcc.Stats) int64 { return s.Queued })),
		gauge("debugging_mvcc_compact_revision", "The revision of the last compaction, -1 for none.",
			func() float64 { return newestCompaction(shards) }),
		counter("debugging_mvcc_db_compaction_keys_total", "Versions that were removed after compactions.",
			stores(func(s mvcc.Stats) int64 { return s.Swept })),
	} {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

func newestCompaction(shards map[uint64]*shard.Data) float64 {
	rev := int64(-1)
	for _, d := range shards {
		rev = max(rev, d.Store().Stats().Compacted)
	}
	return float64(rev)
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "etcd", Name: name, Help: help}, value)
}

// ownGauge is gauge of what etcd has no name for.
func ownGauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "latchkey", Name: name, Help: help}, value)
}

func counter(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "etcd", Name: name, Help: help}, value)
}
