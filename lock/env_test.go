package lock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}

const hostID = "00000000-0000-4000-8000-000000000001"

// env is a service over a real router and real shards, on memory file systems and in fake
// time.
type env struct {
	*Service
	router *router.Router
	t      *testing.T

	// proofs, txns, reads and peeks count the calls of the service.
	proofs, txns, reads, peeks atomic.Int64
	// renewals counts those of leases, aheads those that are proved later.
	renewals, aheads atomic.Int64
	// hidden, if set, says which ranges nobody may read.
	hidden func(*pb.RangeRequest) bool
	// stuck has transactions wait for a majority that does not come.
	stuck atomic.Bool
	// proving, if set, runs before a proof, and peeked after the queue was read.
	proving, peeked func()
	// passing, if set, runs before what was asked ahead is proved, and unproved keeps it from being that.
	passing  func()
	unproved bool
	// stale, if set, is what this node knows of the queue.
	stale *pb.RangeResponse
}

// whole is a map of one shard, split one where the queue of "l" is divided.
var (
	whole = placement.Map{{Start: []byte{}, Shard: 2}}
	split = placement.Map{{Start: []byte{}, Shard: 2}, {Start: keys.Position([]byte("l/8")), Shard: 3}}
)

// run runs a test of a service over the shards of a map.
func run(t *testing.T, m placement.Map, test func(*env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, end := startRouter(t, m)
		defer end()
		e := &env{router: r, t: t}
		e.Service = New(e.config())
		defer pause() // who still waited leaves
		defer e.Close()
		test(e)
	})
}

// config is that of a service of a node which is alone.
func (e *env) config() Config {
	return Config{Store: e, Node: e, Patience: time.Second, Now: time.Now}
}

// runBoth runs a test on one shard and on several.
func runBoth(t *testing.T, test func(*env)) {
	t.Helper()
	t.Run("one shard", func(t *testing.T) { run(t, whole, test) })
	t.Run("a divided queue", func(t *testing.T) { run(t, split, test) })
}

func startRouter(t *testing.T, m placement.Map) (_ *router.Router, end func()) {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), FormatMajorVersion: pebble.FormatNewest})
	check(t, err)
	host, err := raft.OpenHost(raft.HostConfig{
		Dir: "/raft", Name: "test", NodeHostID: hostID, Address: "here",
		Resolve:      func(id string) (string, bool) { return "here", id == hostID },
		DeploymentID: 1, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 1, ElectionTicks: 10,
		DB: db, Syncer: raft.NewSyncer(db), StateFS: vfs.NewMem(), TempDir: "tmp", RaftFS: raftvfs.NewMem(),
		Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	order := &tally{last: 1}
	shards := make(map[uint64]*shard.Data)
	for _, p := range m {
		d, err := shard.Start(host, shard.DataConfig{ShardID: p.Shard, ReplicaID: 1, Members: map[uint64]string{1: hostID}, Oracle: order})
		check(t, err)
		shards[p.Shard] = d
		caller := raft.Caller[*shard.Data]{Replica: d.Replica(), Here: d}
		check(t, caller.Again(t.Context(), func(ctx context.Context, d *shard.Data) error {
			return d.GiveShape(ctx, shard.Shape{Ordered: len(m) > 1, Owned: m.Owned(p.Shard)})
		}))
	}
	r := router.New(router.Config{
		System: fixedMap{system.State{Map: m, Order: system.OrderRecord{Compacted: -1}}}, Order: order,
		Shards: shards, Timeout: 7 * time.Second,
	})
	for _, d := range shards {
		d.Connect(r)
	}
	return r, func() {
		r.Close()
		host.Close()
		for _, d := range shards {
			d.Close()
		}
		check(t, db.Close())
	}
}

// fixedMap is a map that does not change.
type fixedMap struct{ state system.State }

func (m fixedMap) State() *system.State { return &m.state }

// tally is an oracle that always leads.
type tally struct {
	mu   sync.Mutex
	last int64
}

func (o *tally) Ask(_ context.Context, count int, _ raft.Leading) (raft.Block, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.last + 1
	o.last += int64(count)
	return raft.Block{First: first, Newest: o.last}, nil
}

func (*tally) IsOracle() bool { return true }

func (o *tally) Newest(ctx context.Context) (raft.Block, error) { return o.Ask(ctx, 0, raft.Leading{}) }

func (*tally) Prove(_ context.Context, claims []raft.Claim) (raft.Since, []bool, error) {
	return raft.Since{}, make([]bool, len(claims)), nil
}

func (*tally) Compact(context.Context, int64) (bool, error) { return false, nil }

// env is what the service stands on, with calls counted and held.
var (
	_ Store = (*env)(nil)
	_ Node  = (*env)(nil)
)

func (e *env) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	e.txns.Add(1)
	if e.stuck.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return e.router.Txn(ctx, r)
}

func (e *env) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	e.reads.Add(1)
	if e.hidden != nil && e.hidden(r) {
		return nil, auth.ErrPermissionDenied
	}
	return e.router.Range(ctx, r)
}

func (e *env) RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	e.proofs.Add(1)
	if e.proving != nil {
		e.proving()
	}
	return e.router.RangeInShard(ctx, r)
}

func (e *env) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return e.router.DeleteRange(ctx, r)
}

func (e *env) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return e.router.LeaseGrant(ctx, r)
}

func (e *env) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return e.router.LeaseRevoke(ctx, r)
}

func (e *env) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	e.renewals.Add(1)
	resp, err := e.router.LeaseRenew(ctx, id)
	if errors.Is(err, lease.ErrNotFound) {
		return &pb.LeaseKeepAliveResponse{ID: id}, nil
	}
	return resp, err
}

func (e *env) LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
	ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
) {
	e.aheads.Add(1)
	ttl, passed, err := e.router.LeaseRenewAhead(ctx, id, key)
	return ttl, func(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
		if e.passing != nil {
			e.passing()
		}
		if e.unproved {
			return nil, nil
		}
		return passed(ctx, r)
	}, err
}

func (e *env) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	resp, err := e.router.LeaseTimeToLive(ctx, r)
	if errors.Is(err, lease.ErrNotFound) {
		return &pb.LeaseTimeToLiveResponse{ID: r.ID, TTL: -1}, nil
	}
	return resp, err
}

func (e *env) Divided(key, end []byte) bool { return e.router.Divided(key, end) }

func (e *env) Peek(ctx context.Context, r *pb.RangeRequest, least int64) (*pb.RangeResponse, error) {
	e.peeks.Add(1)
	if e.stale != nil {
		return e.stale, nil
	}
	resp, err := e.router.Peek(ctx, r, least)
	if e.peeked != nil {
		e.peeked()
	}
	return resp, err
}

func (e *env) Watchers() Watchers { return e.router.NewWatchGroup() }

func (e *env) Prove(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	e.proofs.Add(1)
	return e.router.RangeInShard(auth.With(ctx, auth.Server), r)
}

func (e *env) grant(ids ...int64) {
	e.t.Helper()
	for _, id := range ids {
		_, err := e.router.LeaseGrant(e.ctx(), &pb.LeaseGrantRequest{ID: id, TTL: 3600})
		check(e.t, err)
	}
}

func (e *env) revoke(id int64) {
	e.t.Helper()
	_, err := e.router.LeaseRevoke(e.ctx(), &pb.LeaseRevokeRequest{ID: id})
	check(e.t, err)
}

func (e *env) ctx() context.Context { return auth.With(e.t.Context(), auth.Identity{}) }

// keys returns the keys of a queue in order.
func (e *env) keys(name string) (all []string) {
	e.t.Helper()
	r := oldest(prefixOf([]byte(name)))
	r.Limit = 0
	resp, err := e.router.Range(e.ctx(), r)
	check(e.t, err)
	for _, kv := range resp.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// locking is a call of Lock that is under way.
type locking struct {
	cancel context.CancelFunc
	done   chan struct{}
	held   Held
	err    error
}

// lock calls Lock, and returns when it is answered or waits.
func (e *env) lock(name string, lease int64) *locking {
	ctx, cancel := context.WithCancel(e.ctx())
	l := &locking{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.held, l.err = e.Lock(ctx, []byte(name), lease)
	}()
	inQueue()
	return l
}

// answered reports whether the call has been.
func (l *locking) answered() bool {
	pause()
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// wantHeld fails the test unless the lock was given to the call.
func (e *env) wantHeld(l *locking) Held {
	e.t.Helper()
	if !l.answered() {
		e.t.Fatal("the lock was not given")
	}
	check(e.t, l.err)
	return l.held
}

func (e *env) wantWaiting(ls ...*locking) {
	e.t.Helper()
	for _, l := range ls {
		if l.answered() {
			e.t.Fatalf("did not wait: %+v, %v", l.held, l.err)
		}
	}
}

func (e *env) wantErr(l *locking, want error) {
	e.t.Helper()
	if !l.answered() {
		e.t.Fatalf("still waits, want %v", want)
	}
	if !errors.Is(l.err, want) {
		e.t.Fatalf("got %+v, %v, want %v", l.held, l.err, want)
	}
}

func (e *env) unlock(key string) {
	e.t.Helper()
	_, err := e.Unlock(e.ctx(), []byte(key))
	check(e.t, err)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inQueue waits until who has asked for a lock is in the queue: a place behind others may wait for a moment to
// be written with something else.
func inQueue() {
	time.Sleep(5 * time.Millisecond)
	synctest.Wait()
}

// pause waits until nothing goes on any more. Watches over several shards ask for promises
// every few milliseconds.
func pause() {
	time.Sleep(50 * time.Millisecond)
	synctest.Wait()
}
