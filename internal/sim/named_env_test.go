package sim

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
)

// The shards of fourShards, by the first letter of their keys.
const (
	shardA = placement.FirstDataShard + iota
	shardB
	shardC
	shardD
)

// bubble runs a test on a cluster of four shards, all led by node 1, on a network that
// does as it is told.
func bubble(t *testing.T, fn func(c *cluster)) {
	t.Helper()
	bubbleOf(t, options{seed: seed(t), splits: fourShards, snapshotEntries: 60}, fn)
}

// bubbleOf is bubble for other options.
func bubbleOf(t *testing.T, o options, fn func(c *cluster)) {
	t.Helper()
	untilShown(t, o, func(c *cluster) {
		c.placeAll(c.nodes[0])
		fn(c)
	})
}

// node returns the process of a node, which must run.
func (c *cluster) node(id uint64) *process { return c.nodes[id-1].running() }

func (p *process) put(tb testing.TB, key, value string) int64 {
	tb.Helper()
	resp, err := p.router.Put(tb.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		tb.Fatalf("put %s at node %d: %v", key, p.node.id, err)
	}
	return resp.Header.Revision
}

// later is the outcome of a call that runs meanwhile.
type later[T any] struct {
	done chan struct{}
	resp T
	err  error
}

// meanwhile makes a call while the test goes on.
func meanwhile[T any](fn func() (T, error)) *later[T] {
	l := &later[T]{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.resp, l.err = fn()
	}()
	return l
}

func (l *later[T]) wait() (T, error) {
	<-l.done
	return l.resp, l.err
}

// putting puts a key while the test goes on.
func (p *process) putting(ctx context.Context, key, value string) *later[*pb.PutResponse] {
	return meanwhile(func() (*pb.PutResponse, error) {
		return p.router.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	})
}

// read reads keys and returns them by name, and the header's revision.
func (p *process) read(tb testing.TB, key, end string) (map[string]*mvccpb.KeyValue, int64) {
	tb.Helper()
	resp, err := p.router.Range(tb.Context(), &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
	if err != nil {
		tb.Fatalf("range [%s, %s) at node %d: %v", key, end, p.node.id, err)
	}
	found := make(map[string]*mvccpb.KeyValue)
	for _, kv := range resp.Kvs {
		found[string(kv.Key)] = kv
	}
	return found, resp.Header.Revision
}

// watchAll watches everything on a node from now on.
func (c *cluster) watchAll(p *process) *watcher { return c.watchSpan(p, "\x00", "\x00") }

// watchSpan watches a span on a node from now on.
func (c *cluster) watchSpan(p *process, key, end string) *watcher {
	w := &watcher{c: c, key: []byte(key), end: []byte(end), wake: make(chan struct{}, 1), pick: func() *process { return p }}
	c.wg.Go(func() { w.run(c.ctx.Done()) })
	synctest.Wait()
	return w
}

// heard waits for n events and returns them.
func (w *watcher) heard(tb testing.TB, n int) []*mvccpb.Event {
	tb.Helper()
	for range 10_000 {
		if events := w.events(); len(events) >= n {
			return events
		}
		time.Sleep(time.Millisecond)
	}
	tb.Fatalf("heard %v, expected %d events", w.events(), n)
	return nil
}

// inOrder checks that a watcher heard its events in the order of their revisions.
func (w *watcher) inOrder(tb testing.TB, n int) {
	tb.Helper()
	events := w.heard(tb, n)
	if !slices.IsSortedFunc(events, func(a, b *mvccpb.Event) int { return int(a.Kv.ModRevision - b.Kv.ModRevision) }) {
		tb.Errorf("heard out of order: %v", events)
	}
}

// calls counts the calls of a kind that a test interferes with.
type calls struct {
	mu sync.Mutex
	n  int
}

func (c *calls) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *calls) made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// drop loses the messages of a shard that which picks, until it is ended.
func (c *cluster) drop(shard uint64, which func(l link, m *raftpb.Message) bool) (end func()) {
	var ended atomic.Bool
	c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
		return fate{lose: !system && m.ShardID == shard && !ended.Load() && which(l, m)}
	})
	return func() { ended.Store(true) }
}

// entries picks the messages that bring entries to followers.
func entries(_ link, m *raftpb.Message) bool { return m.Type == raftpb.Replicate && len(m.Entries) > 0 }

// acknowledgements picks the messages that acknowledge entries.
func acknowledgements(_ link, m *raftpb.Message) bool { return m.Type == raftpb.ReplicateResp }

// unlessShort returns what a test uses, or less where tests are to be short.
func unlessShort[T any](usual, short T) T {
	if testing.Short() {
		return short
	}
	return usual
}

// leaseAt returns an id whose home is a shard.
func (c *cluster) leaseAt(shard uint64) int64 { return c.leasesAt(shard, 1)[0] }

// leasesAt returns n ids whose home is a shard.
func (c *cluster) leasesAt(shard uint64, n int) (ids []int64) {
	owned := c.node(1).shards[shard].Shape().Owned
	for id := int64(1); len(ids) < n; id++ {
		if owned.Covers(keys.LeasePositions(id)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// homeOf returns the shard that is the home of a lease.
func (c *cluster) homeOf(id int64) uint64 {
	for shardID, d := range c.node(1).shards {
		if d.Shape().Owned.Covers(keys.LeasePositions(id)) {
			return shardID
		}
	}
	c.tb.Fatalf("lease %d has no home", id)
	return 0
}

// grant grants a lease.
func (p *process) grant(tb testing.TB, id, ttl int64) {
	tb.Helper()
	if _, err := p.router.LeaseGrant(tb.Context(), &pb.LeaseGrantRequest{ID: id, TTL: ttl}); err != nil {
		tb.Fatalf("grant %d: %v", id, err)
	}
}

func (p *process) revoke(tb testing.TB, id int64) {
	tb.Helper()
	if _, err := p.router.LeaseRevoke(tb.Context(), &pb.LeaseRevokeRequest{ID: id}); err != nil {
		tb.Fatalf("revoke %d: %v", id, err)
	}
}

// attach puts a key that hangs on a lease.
func (p *process) attach(tb testing.TB, key string, id int64) error {
	tb.Helper()
	_, err := p.router.Put(tb.Context(), &pb.PutRequest{Key: []byte(key), Lease: id})
	return err
}
