package router

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}

// fixedSystem is a map that does not change.
type fixedSystem struct{ state system.State }

func (m fixedSystem) State() *system.State { return &m.state }

// newestUsers says that the users that the system shows are the newest.
type newestUsers struct{ UserStore }

func (newestUsers) ConfirmUsers(context.Context) error { return nil }

const hostID = "00000000-0000-4000-8000-000000000001"

// testCluster is a router over real shards in one process, on memory file systems and
// in fake time.
type testCluster struct {
	*Router
	host   *raft.Host
	shards map[uint64]*shard.Data
	db     *pebble.DB
}

// newTestCluster starts the shards of the map. A shard that is to have no leader has a
// second member that does not exist.
func newTestCluster(t *testing.T, m placement.Map, leaderless bool) *testCluster {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	host, err := raft.OpenHost(raft.HostConfig{
		Dir: "/raft", Name: "test", NodeHostID: hostID, Address: "here",
		Resolve:      func(id string) (string, bool) { return "here", id == hostID },
		DeploymentID: 1, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 1, ElectionTicks: 10,
		DB: db, Syncer: raft.NewSyncer(db), StateFS: vfs.NewMem(), TempDir: "tmp", RaftFS: raftvfs.NewMem(),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &testCluster{host: host, db: db, shards: make(map[uint64]*shard.Data)}
	members := map[uint64]string{1: hostID}
	if leaderless {
		members[2] = "00000000-0000-4000-8000-000000000002"
	}
	order := &tally{last: 1}
	for _, p := range m {
		if s.shards[p.Shard] != nil {
			continue
		}
		d, err := shard.Start(host, shard.DataConfig{ShardID: p.Shard, ReplicaID: 1, Members: members, Oracle: order})
		if err != nil {
			t.Fatal(err)
		}
		s.shards[p.Shard] = d
		if leaderless {
			continue
		}
		caller := raft.Caller[*shard.Data]{Replica: d.Replica(), Here: d}
		err = caller.Again(t.Context(), func(ctx context.Context, d *shard.Data) error {
			return d.GiveShape(ctx, shard.Shape{Ordered: len(m) > 1, Owned: m.Owned(p.Shard)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Router = New(Config{
		System: fixedSystem{system.State{
			Map: m, Order: system.OrderRecord{Compacted: -1}, Cluster: system.ClusterRecord{Version: system.Version},
		}},
		Order: order, UserStore: newestUsers{}, Self: 1, Shards: s.shards, Timeout: 7 * time.Second, WideWrites: true,
	})
	for _, d := range s.shards {
		d.Connect(s.Router)
	}
	return s
}

// tally is an oracle that always leads.
type tally struct {
	mu        sync.Mutex
	last      int64
	compacted int64
	// asked, if it is set, is called before numbers are handed out.
	asked func()
}

func (o *tally) Ask(_ context.Context, count int, _ raft.Leading) (raft.Block, error) {
	if count > 0 && o.asked != nil {
		o.asked()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.last + 1
	o.last += int64(count)
	return raft.Block{First: first, Newest: o.last, Compacted: o.compacted}, nil
}

func (*tally) IsOracle() bool { return true }

func (o *tally) Newest(ctx context.Context) (raft.Block, error) { return o.Ask(ctx, 0, raft.Leading{}) }

// Prove proves nothing.
func (*tally) Prove(_ context.Context, claims []raft.Claim) (raft.Since, []bool, error) {
	return raft.Since{}, make([]bool, len(claims)), nil
}

func (o *tally) Compact(_ context.Context, rev int64) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	done := rev > o.compacted
	o.compacted = max(o.compacted, rev)
	return done, nil
}

func (s *testCluster) close(t *testing.T) {
	t.Helper()
	s.Close()
	s.host.Close()
	for _, d := range s.shards {
		d.Close()
	}
	if err := s.db.Close(); err != nil {
		t.Error(err)
	}
}

var (
	one = placement.Map{{Start: []byte{}, Shard: 2}}
	two = placement.Map{{Start: []byte{}, Shard: 2}, {Start: keys.Position([]byte("m")), Shard: 3}}
)

func put(key string) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(key), Value: []byte("v" + key)}
}

func TestCallsWithoutLeaderTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, one, true)
		defer s.close(t)
		for name, call := range map[string]func(ctx context.Context) error{
			"put": func(ctx context.Context) error { _, err := s.Put(ctx, put("a")); return err },
			"range": func(ctx context.Context) error {
				_, err := s.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
				return err
			},
			"renew": func(ctx context.Context) error { _, err := s.LeaseRenew(ctx, 1); return err },
		} {
			start := time.Now()
			if err := call(t.Context()); !errors.Is(err, raft.ErrTimeout) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(start); took != 7*time.Second {
				t.Errorf("%s took %v", name, took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s with a deadline of its own: %v", name, err)
			}
			cancel()
		}
		if _, err := s.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), Serializable: true}); err != nil {
			t.Errorf("a serializable read needs no leader: %v", err)
		}
	})
}

func TestKeysOnSeveralShardsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		s.wideWrites = false
		for _, key := range []string{"a", "z"} {
			if _, err := s.Put(t.Context(), put(key)); err != nil {
				t.Fatal(err)
			}
		}
		rng := &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("zz")}
		if r, err := s.Range(t.Context(), rng); err != nil || r.Count != 2 || r.Header.Revision != 3 {
			t.Errorf("range: %v, %v", r, err)
		}
		wide := &pb.DeleteRangeRequest{Key: rng.Key, RangeEnd: rng.RangeEnd}
		if _, err := s.DeleteRange(t.Context(), wide); !errors.Is(err, ErrSeveralShards) {
			t.Errorf("delete: %v", err)
		}
		if r, err := s.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("m")}); err != nil || r.Count != 1 {
			t.Errorf("range within a shard: %v, %v", r, err)
		}
		nested := &pb.TxnRequest{Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put("a")}}}}
		txn := &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("z"), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}}},
		}
		if _, err := s.Txn(t.Context(), txn); !errors.Is(err, ErrSeveralShards) {
			t.Errorf("txn: %v", err)
		}
	})
}

// A refusal names two keys that the write touches and a split between them. Ranges that end
// before they begin touch no shard, and transactions that only read may touch all.
func TestWideWrites(t *testing.T) {
	op := func(r any) *pb.RequestOp {
		switch r := r.(type) {
		case *pb.PutRequest:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
		case *pb.DeleteRangeRequest:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
		case *pb.TxnRequest:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
		default:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r.(*pb.RangeRequest)}}
		}
	}
	txn := func(ops ...any) *pb.TxnRequest {
		req := &pb.TxnRequest{}
		for _, o := range ops {
			req.Success = append(req.Success, op(o))
		}
		return req
	}
	get := func(key, end string) *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	}
	del := func(key, end string) *pb.DeleteRangeRequest {
		return &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	}
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		s.wideWrites = false
		long := strings.Repeat("z", 1000)
		for _, tc := range []struct {
			req  *pb.TxnRequest
			want string
		}{
			{txn(put("a"), put("z")), `"a" and "z" are divided at "m"`},
			{txn(put("z"), get("a", "")), `"a" and "z" are divided at "m"`},
			{txn(put("b"), txn(del("x", "y"))), `"b" and "x" are divided at "m"`},
			{txn(put("a"), del("b", "x")), `the keys from "b" to "x" are divided at "m"`},
			{txn(del("b", "\x00")), `the keys from "b" on are divided at "m"`},
			{txn(put("a"), put(long)), `"a" and "` + long[:maxShown] + `"… are divided at "m"`},
		} {
			_, err := s.Txn(t.Context(), tc.req)
			var wide *WideError
			if !errors.Is(err, ErrSeveralShards) || !errors.As(err, &wide) || wide.Where() != tc.want {
				t.Errorf("%v: %v, want %s", tc.req, err, tc.want)
			}
		}
		if _, err := s.DeleteRange(t.Context(), del("b", "x")); err == nil || !strings.Contains(err.Error(), `the keys from "b" to "x" are divided at "m"`) {
			t.Errorf("delete: %v", err)
		}
		// A shard takes what has no keys beside what has some.
		for i, req := range []*pb.TxnRequest{
			txn(put("a"), del("z", "y")), txn(del("z", "b"), put("a")), txn(put("z"), get("b", "a")), txn(del("z", "a")),
		} {
			if _, err := s.Txn(t.Context(), req); err != nil {
				t.Errorf("%d: %v: %v", i, req, err)
			}
		}
		if _, err := s.DeleteRange(t.Context(), del("z", "b")); err != nil {
			t.Errorf("delete of no keys: %v", err)
		}
		before, err := s.Range(t.Context(), get("a", ""))
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range []*pb.TxnRequest{txn(txn(get("a", ""), get("z", ""))), txn(txn(get("a", "")), txn(txn(get("a", ""))))} {
			resp, err := s.Txn(t.Context(), req)
			if err != nil {
				t.Errorf("%v: %v", req, err)
				continue
			}
			nested := resp.Responses[0].GetResponseTxn()
			if resp.Header.Revision != before.Header.Revision || nested.GetHeader().GetRevision() != 0 || len(nested.Responses[0].GetResponseRange().GetKvs()) != 1 {
				t.Errorf("%v: %v, the revision before was %d", req, resp, before.Header.Revision)
			}
		}
	})
}

// Who has no right to keys is told that, not which revisions there are, nor that the
// keys lie on several shards.
func TestRightsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		for range 3 {
			if _, err := s.Put(t.Context(), put("a")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Compact(t.Context(), &pb.CompactionRequest{Revision: 3}); err != nil {
			t.Fatal(err)
		}
		users := auth.New()
		for _, change := range []*pb.InternalRaftRequest{
			{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
			{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
			{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
			{AuthEnable: &pb.AuthEnableRequest{}},
		} {
			var err error
			if users, _, err = users.Apply(change); err != nil {
				t.Fatal(err)
			}
		}
		s.system = fixedSystem{system.State{Map: two, Order: system.OrderRecord{Compacted: 3}, Auth: users}}
		for _, sender := range []struct {
			id   auth.Identity
			want error
		}{
			{auth.Identity{User: "u", Revision: users.Revision, Known: true}, auth.ErrPermissionDenied},
			{auth.Identity{}, auth.ErrUserEmpty},
			{auth.Identity{User: auth.Root, Revision: users.Revision - 1, Known: true}, auth.ErrOldRevision},
			{auth.Identity{User: auth.Root, Revision: users.Revision, Known: true}, nil},
		} {
			ctx := auth.With(t.Context(), sender.id)
			for rev, want := range map[int64]error{2: mvcc.ErrCompacted, 1000: mvcc.ErrFutureRev} {
				if sender.want != nil {
					want = sender.want
				}
				req := &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Revision: rev}
				if _, err := s.Range(ctx, req); !errors.Is(err, want) {
					t.Errorf("%+v reads at revision %d: %v, want %v", sender.id, rev, err, want)
				}
				err := s.RangeStream(ctx, req, 1, func(*pb.RangeResponse) error { return nil })
				if !errors.Is(err, want) {
					t.Errorf("%+v streams at revision %d: %v, want %v", sender.id, rev, err, want)
				}
			}
			want := sender.want
			if want == nil {
				want = ErrSeveralShards
			}
			if _, err := s.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("z")}); !errors.Is(err, want) {
				t.Errorf("%+v deletes over shards: %v, want %v", sender.id, err, want)
			}
			puts := &pb.TxnRequest{}
			for _, key := range []string{"a", "z"} {
				puts.Success = append(puts.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put(key)}})
			}
			if _, err := s.Txn(ctx, puts); !errors.Is(err, want) {
				t.Errorf("%+v puts over shards: %v, want %v", sender.id, err, want)
			}
		}
	})
}

// Whatever call has shown a revision, no header falls below it, not even that of a
// read that asks no leader.
func TestHeadersNeverFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		ctx := t.Context()
		if _, err := s.Put(ctx, put("a")); err != nil {
			t.Fatal(err)
		}
		watch := func() *WatchGroup {
			g := s.NewWatchGroup()
			g.Add(1, mvcc.WatchOptions{Key: []byte("z"), Start: 1})
			return g
		}
		group := watch()
		defer group.Close()
		for name, show := range map[string]func() (int64, error){
			"a lease": func() (int64, error) {
				r, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 100})
				return r.GetHeader().GetRevision(), err
			},
			"the node": func() (int64, error) { return s.Revision(), nil },
			"a hash": func() (int64, error) {
				r, err := s.HashKV(ctx, 0)
				return r.GetHeader().GetRevision(), err
			},
			"a watch": func() (int64, error) {
				g := watch()
				defer g.Close()
				return g.Add(2, mvcc.WatchOptions{Key: []byte("z")}), nil
			},
			"progress": func() (int64, error) {
				for {
					if _, ok, err := group.Poll(); ok || err != nil {
						return 0, errors.Join(err, errors.New("there was an event"))
					}
					if rev, ok, _ := group.Progress(); ok {
						return rev, nil
					}
					<-group.Ready()
				}
			},
		} {
			// A write that is refused takes a number, of which nobody is told.
			refused := &pb.PutRequest{Key: []byte("z"), IgnoreValue: true}
			if _, err := s.Put(ctx, refused); !errors.Is(err, mvcc.ErrKeyNotFound) {
				t.Fatalf("put: %v", err)
			}
			shown, err := show()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r, err := s.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Serializable: true})
			if err != nil || r.Header.Revision < shown {
				t.Errorf("%s showed revision %d, a read after it %d, %v", name, shown, r.GetHeader().GetRevision(), err)
			}
		}
	})
}

// A limit cuts the keys of several shards as it would those of one.
func TestLimitsOverShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		for _, key := range []string{"a", "b", "y", "z"} {
			if _, err := s.Put(t.Context(), put(key)); err != nil {
				t.Fatal(err)
			}
		}
		for limit, want := range map[int64]int{
			math.MinInt64: 4, -1: 4, 0: 4, 1: 1, 2: 2, 3: 3, 4: 4, 5: 4, math.MaxInt64 - 1: 4, math.MaxInt64: 4,
		} {
			for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_ASCEND, pb.RangeRequest_DESCEND} {
				req := &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, Limit: limit, SortOrder: order}
				r, err := s.Range(t.Context(), req)
				if err != nil || len(r.Kvs) != want || r.Count != 4 || r.More != (want < 4) {
					t.Errorf("limit %d, %v: %v, %v", limit, order, r, err)
				}
			}
			n := 0
			err := s.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, Limit: limit}, 1, func(r *pb.RangeResponse) error {
				n += len(r.Kvs)
				if r.Header != nil && (r.Count != 4 || r.More != (want < 4)) {
					t.Errorf("limit %d: the stream ends with %v", limit, r)
				}
				return nil
			})
			if err != nil || n != want {
				t.Errorf("limit %d: %d keys streamed, %v", limit, n, err)
			}
		}
	})
}

func TestReadOnly(t *testing.T) {
	read := func(serializable bool) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Serializable: serializable}}}
	}
	nested := func(ops ...*pb.RequestOp) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Failure: ops}}}
	}
	write := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{}}}
	for i, tc := range []struct {
		success, failure    []*pb.RequestOp
		reads, serializable bool
	}{
		{nil, nil, true, true},
		{[]*pb.RequestOp{read(true)}, nil, true, true},
		{[]*pb.RequestOp{read(true)}, []*pb.RequestOp{read(false)}, true, false},
		{[]*pb.RequestOp{read(true)}, []*pb.RequestOp{write}, false, false},
		{[]*pb.RequestOp{nested()}, nil, true, false},
		{[]*pb.RequestOp{nested(read(true))}, nil, true, false},
		{nil, []*pb.RequestOp{nested(nested(read(false)))}, true, false},
		{[]*pb.RequestOp{nested(write)}, nil, false, false},
		{nil, []*pb.RequestOp{read(true), nested(nested(write))}, false, false},
		{[]*pb.RequestOp{nested(&pb.RequestOp{})}, nil, false, false},
		{[]*pb.RequestOp{{}}, nil, false, false},
	} {
		reads, serializable := readOnly(&pb.TxnRequest{Success: tc.success, Failure: tc.failure})
		if reads != tc.reads || serializable != tc.serializable {
			t.Errorf("%d: %v %v", i, reads, serializable)
		}
	}
}

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, one, false)
		defer s.close(t)
		ctx := t.Context()
		seen := make(map[int64]bool)
		for range 100 {
			r, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 100})
			if err != nil {
				t.Fatal(err)
			}
			if r.ID <= 0 || seen[r.ID] {
				t.Errorf("picked id %d", r.ID)
			}
			seen[r.ID] = true
		}
		if _, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: -5, TTL: 100}); err != nil {
			t.Error(err)
		}
		if _, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: -5, TTL: 100}); !errors.Is(err, lease.ErrExists) {
			t.Errorf("taken id: %v", err)
		}
		list, err := s.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
		if err != nil || len(list.Leases) != 101 {
			t.Errorf("list: %v, %v", list, err)
		}
		if r, err := s.LeaseRenew(ctx, 77); err != nil || r.TTL != 0 {
			t.Errorf("renew of no lease: %v, %v", r, err)
		}
		if _, err := s.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 77}); !errors.Is(err, lease.ErrNotFound) {
			t.Errorf("life of no lease: %v", err)
		}
	})
}

// Leases count for the size of what a node holds, at their homes and wherever they have keys,
// until they have ended everywhere.
func TestLeasesHaveASize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		ctx := t.Context()
		keys := func() (all, live int64) {
			for _, d := range s.shards {
				v := d.Store().View()
				all, live = all+v.Size(), live+v.LiveSize()
				v.Close()
			}
			return all, live
		}
		counted := func(when string, want int64) {
			t.Helper()
			all, live := keys()
			if got := s.DBSize() - all; got != want*lease.Bytes {
				t.Errorf("%s: leases count for %d bytes, want %d times %d", when, got, want, lease.Bytes)
			}
			retained, current := s.Sizes()
			if retained != s.DBSize() {
				t.Errorf("%d bytes are retained, and %d", retained, s.DBSize())
			}
			if got := current - live; got != want*lease.Bytes {
				t.Errorf("%s: leases count for %d bytes in use, want %d times %d", when, got, want, lease.Bytes)
			}
		}
		counted("at first", 0)
		for id := range int64(10) {
			if _, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id + 1, TTL: 9_000_000_000}); err != nil {
				t.Fatal(err)
			}
		}
		counted("granted", 10)
		for id := range int64(10) {
			for _, key := range []string{"a", "z"} {
				if _, err := s.Put(ctx, &pb.PutRequest{Key: fmt.Append([]byte(key), id), Lease: id + 1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		counted("with keys on both shards", 20)
		for _, d := range s.shards {
			d.Replica().Between(func() {
				d.BeginReload()
				if err := d.Reload(); err != nil {
					t.Error(err)
				}
			})
		}
		counted("loaded anew", 20)
		for id := range int64(10) {
			if _, err := s.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id + 1}); err != nil {
				t.Fatal(err)
			}
		}
		// Tombstones go when a leader has looked for them.
		time.Sleep(time.Minute)
		counted("revoked", 0)
	})
}

// A transaction that needs a lease that does not exist is refused, whatever other
// leases it names and wherever they are kept; one that does not need it runs.
func TestUnknownLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		ctx := t.Context()
		const known = 8 // leases 1 to 8, those above don't exist
		for id := range int64(known) {
			if _, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id + 1, TTL: 100}); err != nil {
				t.Fatal(err)
			}
		}
		attach := func(id int64) *pb.RequestOp {
			return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", id), Lease: id}}}
		}
		for first := range int64(2 * known) {
			for second := range int64(2 * known) {
				if first == second {
					continue
				}
				txn := &pb.TxnRequest{
					Success: []*pb.RequestOp{attach(first + 1), attach(second + 1)}, Failure: []*pb.RequestOp{attach(known + 1)},
				}
				_, err := s.Txn(ctx, txn)
				if missing := first >= known || second >= known; errors.Is(err, mvcc.ErrLeaseNotFound) != missing || err != nil && !missing {
					t.Errorf("leases %d and %d of %d: %v", first+1, second+1, known, err)
				}
			}
		}
	})
}

// A physical compaction is answered when what it drops is gone.
func TestPhysicalCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, one, false)
		defer s.close(t)
		for range 5000 {
			if _, err := s.Put(t.Context(), put("a")); err != nil {
				t.Fatal(err)
			}
		}
		before := s.DBSize()
		if _, err := s.Compact(t.Context(), &pb.CompactionRequest{Revision: s.Revision(), Physical: true}); err != nil {
			t.Fatal(err)
		}
		if after := s.DBSize(); after > before/1000 {
			t.Errorf("%d bytes after the compaction, %d before", after, before)
		}
	})
}

// A backup holds every key and lease of one revision, and its end tells that it
// is whole.
func TestBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, one, false)
		defer s.close(t)
		ctx := t.Context()
		if _, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 5, TTL: 100}); err != nil {
			t.Fatal(err)
		}
		for i := range 300 {
			req := put(fmt.Sprintf("key%03d", i))
			req.Lease = 5 * int64(i%2)
			if _, err := s.Put(ctx, req); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		if err := s.WriteSnapshot(ctx, &out); err != nil {
			t.Fatal(err)
		}
		b := readBackup(t, out.Bytes())
		if b.rev != 301 || len(b.keys) != 300 || len(b.leases) != 1 || b.leases[0].ID != 5 || b.leases[0].TTL != 100 {
			t.Errorf("revision %d, %d keys, leases %v", b.rev, len(b.keys), b.leases)
		}
		for i, kv := range b.keys {
			key := fmt.Sprintf("key%03d", i)
			if string(kv.Key) != key || string(kv.Value) != "v"+key || kv.ModRevision != int64(i)+2 || kv.Lease != 5*int64(i%2) {
				t.Errorf("key %d is %v", i, kv)
			}
		}
	})
}

type backupContent struct {
	rev    uint64
	leases []*pb.LeaseGrantRequest
	keys   []*mvccpb.KeyValue
}

// readBackup reads what docs/snapshot.md describes.
func readBackup(t *testing.T, backup []byte) backupContent {
	t.Helper()
	in := bytes.NewReader(backup)
	magic := make([]byte, len("latchkey backup 1\n"))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != "latchkey backup 1\n" {
		t.Fatalf("magic %q, %v", magic, err)
	}
	var b backupContent
	var err error
	if b.rev, err = binary.ReadUvarint(in); err != nil {
		t.Fatal(err)
	}
	for {
		at := len(backup) - in.Len()
		letter, err := in.ReadByte()
		if err != nil {
			t.Fatal(err)
		}
		size, err := binary.ReadUvarint(in)
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(in, body); err != nil {
			t.Fatal(err)
		}
		switch letter {
		case 'l':
			l := &pb.LeaseGrantRequest{}
			if err := proto.Unmarshal(body, l); err != nil {
				t.Fatal(err)
			}
			b.leases = append(b.leases, l)
		case 'a':
			if a := (&pb.AuthStatusResponse{}); proto.Unmarshal(body, a) != nil || a.Enabled || a.AuthRevision != 1 {
				t.Errorf("users are %v", a)
			}
		case 'k':
			kv := &mvccpb.KeyValue{}
			if err := proto.Unmarshal(body, kv); err != nil {
				t.Fatal(err)
			}
			b.keys = append(b.keys, kv)
		case 'e':
			sum := crc32.Checksum(backup[:at], crc32.MakeTable(crc32.Castagnoli))
			if binary.BigEndian.Uint32(body) != sum {
				t.Errorf("checksum %x, want %08x", body, sum)
			}
			return b
		default:
			t.Fatalf("record %q", letter)
		}
	}
}
