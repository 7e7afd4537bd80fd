package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/system"
)

// dashboards are the names that etcd's dashboards and alerts read.
var dashboards = strings.Fields(`
	grpc_server_handled_total grpc_server_started_total grpc_server_handling_seconds
	etcd_server_has_leader etcd_server_leader_changes_seen_total
	etcd_server_proposals_committed_total etcd_server_proposals_applied_total etcd_server_proposals_pending
	etcd_server_proposals_failed_total
	etcd_mvcc_db_total_size_in_bytes etcd_mvcc_db_total_size_in_use_in_bytes etcd_server_quota_backend_bytes
	etcd_disk_wal_fsync_duration_seconds etcd_disk_backend_commit_duration_seconds
	etcd_network_peer_round_trip_time_seconds etcd_network_peer_sent_bytes_total etcd_network_peer_received_bytes_total
	etcd_network_peer_sent_failures_total etcd_network_active_peers etcd_network_known_peers
	etcd_disk_wal_write_bytes_total etcd_disk_wal_write_duration_seconds etcd_server_snapshot_apply_in_progress_total
	os_fd_used os_fd_limit
	etcd_network_client_grpc_sent_bytes_total etcd_network_client_grpc_received_bytes_total
	process_resident_memory_bytes
	etcd_server_is_leader etcd_server_is_learner etcd_server_id etcd_server_version etcd_server_go_version
	etcd_server_slow_apply_total etcd_server_slow_read_indexes_total etcd_server_read_indexes_failed_total
	etcd_server_heartbeat_send_failures_total etcd_server_client_requests_total
	etcd_server_health_success etcd_server_health_failures etcd_server_healthcheck
	etcd_server_request_duration_seconds etcd_server_apply_duration_seconds etcd_server_range_duration_seconds
	etcd_server_feature_enabled etcd_cluster_version
	etcd_mvcc_put_total etcd_mvcc_delete_total etcd_mvcc_range_total etcd_mvcc_txn_total
	etcd_debugging_mvcc_keys_total etcd_debugging_mvcc_watcher_total etcd_debugging_mvcc_watch_stream_total
	etcd_debugging_mvcc_slow_watcher_total etcd_debugging_mvcc_events_total etcd_debugging_mvcc_pending_events_total
	etcd_debugging_mvcc_current_revision etcd_debugging_mvcc_compact_revision
	etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds
	etcd_debugging_mvcc_db_compaction_total_duration_milliseconds
	etcd_debugging_mvcc_db_compaction_last etcd_debugging_mvcc_db_compaction_keys_total
	etcd_debugging_lease_granted_total etcd_debugging_lease_revoked_total etcd_debugging_lease_renewed_total
	etcd_debugging_lease_ttl_total etcd_debugging_server_lease_expired_total etcd_debugging_auth_revision
	etcd_disk_defrag_inflight etcd_disk_backend_defrag_duration_seconds etcd_disk_backend_snapshot_duration_seconds
	etcd_grpc_proxy_watchers_coalescing_total etcd_grpc_proxy_events_coalescing_total
	etcd_grpc_proxy_cache_keys_total etcd_grpc_proxy_cache_hits_total etcd_grpc_proxy_cache_misses_total
`)

// listed returns the names in the parts of docs/metrics.md: of what each node serves,
// what nodes serve that know others, and what none does.
func listed(t *testing.T) (served, between, missing []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	first, rest, ok := strings.Cut(string(page), "## Between nodes")
	second, third, more := strings.Cut(rest, "## Not served")
	if !ok || !more {
		t.Fatal("the page has not its three parts")
	}
	names := func(part string) []string {
		var all []string
		for row := range strings.Lines(part) {
			cell, reason, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			if !ok || strings.TrimSpace(reason) == "" {
				continue
			}
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cell, -1) {
				all = append(all, m[1])
			}
		}
		return all
	}
	return names(first), names(second), names(third)
}

// measuredNode is a node with a connection to it.
type measuredNode struct {
	*Node

	t    *testing.T
	conn *grpc.ClientConn
}

func newMeasuredNode(t *testing.T) *measuredNode {
	t.Helper()
	n := startNode(t, vfs.NewMem(), raftvfs.NewMem(), func(o *Options) { o.Config.Metrics = config.ExtensiveMetrics })
	conn, err := grpc.NewClient(n.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return &measuredNode{Node: n, t: t, conn: conn}
}

func (n *measuredNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *measuredNode) get(path string) string {
	n.t.Helper()
	resp, err := http.Get("http://" + n.Addrs()[0].String() + path)
	n.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	n.must(err)
	return string(body)
}

func (n *measuredNode) values() map[string]float64 {
	n.t.Helper()
	return measured(n.t, n.Node)
}

// measured returns the sum of each metric's values, of histograms the number of
// observations.
func measured(t *testing.T, n *Node) map[string]float64 {
	t.Helper()
	families, err := n.metrics.registry.Gather()
	check(t, err)
	sums := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sums
}

// TestMetricsPage checks that docs/metrics.md is true, and speaks of every name that
// etcd's dashboards read: each is served, or listed with the reason.
func TestMetricsPage(t *testing.T) {
	n := newMeasuredNode(t)
	_, err := pb.NewKVClient(n.conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
	n.must(err)
	n.get("/readyz")
	page := n.get("/metrics")
	has := func(name string) bool { return strings.Contains(page, "\n# TYPE "+name+" ") }
	served, between, missing := listed(t)
	for _, name := range served {
		if !has(name) {
			t.Errorf("%s is not served", name)
		}
	}
	for _, name := range slices.Concat(between, missing) {
		if has(name) || slices.Contains(served, name) {
			t.Errorf("%s is served", name)
		}
	}
	for _, name := range dashboards {
		if !slices.Contains(slices.Concat(served, between, missing), name) {
			t.Errorf("the page says nothing of %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:etcd|grpc|latchkey|os_fd)_\w+) `).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(served, m[1]) {
			t.Errorf("the page does not list %s", m[1])
		}
	}
}

// deed is something that a node does, with the metrics that must move by it.
type deed struct {
	name  string
	do    func(context.Context, *measuredNode) error
	moves string
}

func deeds() []deed {
	return slices.Concat(keyDeeds(), leaseDeeds(), watchDeeds(), nodeDeeds())
}

func keyDeeds() []deed {
	key := []byte("k")
	return []deed{
		{"put", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewKVClient(n.conn).Put(ctx, &pb.PutRequest{Key: key, Value: []byte("value")})
			return err
		}, `grpc_server_started_total grpc_server_handled_total grpc_server_msg_received_total grpc_server_msg_sent_total
			grpc_server_handling_seconds etcd_network_client_grpc_sent_bytes_total etcd_network_client_grpc_received_bytes_total
			etcd_disk_wal_fsync_duration_seconds etcd_disk_wal_write_bytes_total etcd_disk_backend_commit_duration_seconds
			etcd_server_proposals_committed_total etcd_server_proposals_applied_total
			etcd_server_client_requests_total etcd_server_request_duration_seconds etcd_server_apply_duration_seconds
			etcd_mvcc_put_total etcd_debugging_mvcc_total_put_size_in_bytes etcd_debugging_mvcc_keys_total
			etcd_debugging_mvcc_current_revision etcd_mvcc_db_total_size_in_bytes etcd_mvcc_db_total_size_in_use_in_bytes`},
		{"range", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewKVClient(n.conn).Range(ctx, &pb.RangeRequest{Key: key})
			return err
		}, `etcd_mvcc_range_total etcd_server_request_duration_seconds`},
		{"transaction", func(ctx context.Context, n *measuredNode) error {
			op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
			_, err := pb.NewKVClient(n.conn).Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{op, op}})
			return err
		}, `etcd_mvcc_txn_total etcd_mvcc_range_total`},
		{"delete", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewKVClient(n.conn).DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
			return err
		}, `etcd_mvcc_delete_total etcd_debugging_mvcc_keys_total`},
		{"compaction", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewKVClient(n.conn).Compact(ctx, &pb.CompactionRequest{Revision: 3, Physical: true})
			return err
		}, `etcd_debugging_mvcc_compact_revision etcd_debugging_mvcc_db_compaction_keys_total
			etcd_debugging_mvcc_db_compaction_last etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds
			etcd_debugging_mvcc_db_compaction_total_duration_milliseconds`},
	}
}

func leaseDeeds() []deed {
	grant := func(id int64) func(context.Context, *measuredNode) error {
		return func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewLeaseClient(n.conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: 1})
			return err
		}
	}
	return []deed{
		{"grant", grant(1), `etcd_debugging_lease_granted_total etcd_debugging_lease_ttl_total`},
		{"renewal", func(ctx context.Context, n *measuredNode) error {
			s, err := pb.NewLeaseClient(n.conn).LeaseKeepAlive(ctx)
			if err == nil {
				err = s.Send(&pb.LeaseKeepAliveRequest{ID: 1})
			}
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}, `etcd_debugging_lease_renewed_total etcd_server_client_requests_total`},
		{"revocation", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewLeaseClient(n.conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 1})
			return err
		}, `etcd_debugging_lease_revoked_total`},
		{"end of a lease", func(ctx context.Context, n *measuredNode) error {
			if err := grant(2)(ctx, n); err != nil {
				return err
			}
			for ended := 0.0; ended == 0; ended = n.values()["etcd_debugging_server_lease_expired_total"] {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		}, `etcd_debugging_lease_revoked_total etcd_debugging_server_lease_expired_total`},
	}
}

func watchDeeds() []deed {
	key := []byte("w")
	var group *mvcc.Group
	return []deed{
		{"watch", func(ctx context.Context, n *measuredNode) error {
			s, err := pb.NewWatchClient(n.conn).Watch(ctx)
			if err != nil {
				return err
			}
			create := &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: key}}
			if err := s.Send(&pb.WatchRequest{RequestUnion: create}); err != nil {
				return err
			}
			if _, err := s.Recv(); err != nil {
				return err
			}
			if _, err := n.router.Put(ctx, &pb.PutRequest{Key: key}); err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		}, `etcd_debugging_mvcc_watch_stream_total etcd_debugging_mvcc_watcher_total etcd_debugging_mvcc_events_total`},
		{"watch of history", func(_ context.Context, n *measuredNode) error {
			for _, d := range n.shards {
				group = d.Store().NewGroup()
			}
			group.Add(1, mvcc.WatchOptions{Key: key, Start: 1})
			return nil
		}, `etcd_debugging_mvcc_slow_watcher_total`},
		{"unread event", func(ctx context.Context, n *measuredNode) error {
			group.Add(2, mvcc.WatchOptions{Key: key})
			_, err := n.router.Put(ctx, &pb.PutRequest{Key: key})
			return err
		}, `etcd_debugging_mvcc_pending_events_total`},
		{
			"its end", func(context.Context, *measuredNode) error { group.Close(); return nil },
			`etcd_debugging_mvcc_pending_events_total etcd_debugging_mvcc_slow_watcher_total`,
		},
	}
}

func nodeDeeds() []deed {
	return []deed{
		{"health", func(_ context.Context, n *measuredNode) error {
			n.get("/health")
			n.get("/livez")
			return nil
		}, `etcd_server_health_success etcd_server_healthcheck etcd_server_healthchecks_total`},
		{"alarm", func(ctx context.Context, n *measuredNode) error {
			for _, action := range []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE} {
				_, err := pb.NewMaintenanceClient(n.conn).Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
				if err != nil {
					return err
				}
				n.get("/health")
			}
			return nil
		}, `etcd_server_health_failures etcd_server_request_duration_seconds`},
		{"defragmentation", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewMaintenanceClient(n.conn).Defragment(ctx, &pb.DefragmentRequest{})
			return err
		}, `etcd_disk_backend_defrag_duration_seconds`},
		{"backup", func(ctx context.Context, n *measuredNode) error {
			s, err := pb.NewMaintenanceClient(n.conn).Snapshot(ctx, &pb.SnapshotRequest{})
			for err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}, `etcd_disk_backend_snapshot_duration_seconds`},
		{"user", func(ctx context.Context, n *measuredNode) error {
			_, err := pb.NewAuthClient(n.conn).RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "r"})
			return err
		}, `etcd_debugging_auth_revision etcd_server_request_duration_seconds`},
		{"impatience", abandon, `etcd_server_proposals_failed_total`},
		// What a healthy node does not do.
		{"slowness", func(_ context.Context, n *measuredNode) error {
			n.metrics.Applied("Put", false, time.Second)
			n.metrics.Confirmed(time.Second, nil)
			return nil
		}, `etcd_server_slow_apply_total etcd_server_slow_read_indexes_total`},
		{"lost leadership", func(_ context.Context, n *measuredNode) error {
			n.metrics.Confirmed(0, errors.New("not leader"))
			return nil
		}, `etcd_server_read_indexes_failed_total`},
	}
}

// abandon gives up on a put while nothing can be applied, which pends until then.
func abandon(ctx context.Context, n *measuredNode) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, d := range n.shards {
		d.Replica().Between(func() {
			done := make(chan error, 1)
			go func() {
				_, err := n.router.Put(ctx, &pb.PutRequest{Key: []byte("k")})
				done <- err
			}()
			for n.values()["etcd_server_proposals_pending"] != 1 {
				if ctx.Err() != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			cancel()
			if got := <-done; !errors.Is(got, context.Canceled) {
				err = fmt.Errorf("an abandoned put: %w", got)
			}
		})
	}
	return err
}

// fixed are the metrics that say what does not change while one node serves.
var fixed = map[string]float64{
	"etcd_server_has_leader": 1, "etcd_server_is_leader": 1, "etcd_server_is_learner": 0,
	"etcd_server_leader_changes_seen_total": 1, "etcd_server_id": 1, "etcd_server_version": 1,
	"etcd_server_go_version": 1, "etcd_cluster_version": 1, "etcd_server_quota_backend_bytes": 2 << 30,
	"etcd_server_snapshot_apply_in_progress_total": 0, // TestSnapshotHealsDeposedLeader moves it
	"etcd_network_known_peers":                     1,
	"etcd_disk_defrag_inflight":                    0, "etcd_server_proposals_pending": 0, "latchkey_shards_led": 1,
	"latchkey_cluster_version":       system.Version,
	"latchkey_replicas_without_vote": 0, // TestLearner moves it
	// TestUnsettledTransactions moves these.
	"latchkey_transactions_holding": 0, "latchkey_transactions_holding_oldest_seconds": 0, "latchkey_transactions_unfinished": 0,
}

// TestMetricsMove does one thing after the other and looks at what moves by it, for
// every metric that is served.
func TestMetricsMove(t *testing.T) {
	n := newMeasuredNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	covered := make(map[string]bool)
	for _, d := range deeds() {
		before := n.values()
		if err := d.do(ctx, n); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		for _, name := range strings.Fields(d.moves) {
			covered[name] = true
			// A client has its answer before the call counts as handled.
			for deadline := time.Now().Add(time.Minute); n.values()[name] == before[name]; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Errorf("%s: %s stays at %v", d.name, name, before[name])
					break
				}
			}
		}
	}
	values := n.values()
	for name, want := range fixed {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	served, _, _ := listed(t)
	for _, name := range served {
		if _, ok := fixed[name]; !ok && !covered[name] && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "os_fd_") {
			t.Errorf("nothing was done that moves %s", name)
		}
	}
}

// What is told of open files is true.
func TestMetricsOfFiles(t *testing.T) {
	n := newMeasuredNode(t)
	var limit syscall.Rlimit
	n.must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	before := n.values()
	var open []*os.File
	const more = 50
	for range more {
		f, err := os.Open(os.DevNull)
		n.must(err)
		open = append(open, f)
	}
	// The node opens and closes a few by itself.
	if after := n.values(); after["os_fd_used"]-before["os_fd_used"] < more/2 || before["os_fd_limit"] != float64(limit.Cur) {
		t.Errorf("%v open files of %v, before %d more %v; the limit is %d",
			after["os_fd_used"], after["os_fd_limit"], more, before["os_fd_used"], limit.Cur)
	}
	for _, f := range open {
		n.must(f.Close())
	}
}

// A rejected command is told from others by its labels.
func TestMetricsOperations(t *testing.T) {
	n := newMeasuredNode(t)
	_, err := pb.NewKVClient(n.conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Lease: 9})
	if err == nil {
		t.Fatal("a put with an unknown lease was taken")
	}
	const want = `etcd_server_apply_duration_seconds_count{op="Put",success="false",version="v3"} 1`
	if page := n.get("/metrics"); !strings.Contains(page, want) {
		t.Errorf("%s is not in %s", want, page)
	}
}
