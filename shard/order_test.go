package shard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// counter is an oracle that always leads.
type counter struct {
	mu   sync.Mutex
	last int64
}

func (o *counter) Ask(_ context.Context, count int) (Block, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := Block{First: o.last + 1, Newest: o.last + int64(count), Compacted: -1}
	o.last = b.Newest
	return b, nil
}

// newOrderedCluster returns a cluster of one ordered data shard that owns everything.
func newOrderedCluster(tb testing.TB, n uint64) *cluster {
	tb.Helper()
	return makeCluster(tb, n, cluster{keepsData: true, oracle: &counter{last: 1}})
}

func (nd *testNode) putOnce(key string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := nd.data.Write(ctx, KindPut, &pb.PutRequest{Key: []byte(key)})
	if err != nil {
		return 0, err
	}
	return resp.(*pb.PutResponse).Header.Revision, nil
}

// version returns how often a key was put.
func (nd *testNode) version(tb testing.TB, key string) int64 {
	tb.Helper()
	v := nd.data.Store().View()
	defer v.Close()
	r, err := v.Range(tb.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		tb.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return 0
	}
	return r.Kvs[0].Version
}

// Between a successor's election and its begin entry the deposed leader's numbered
// entries still count; one that the network delivers twice must apply once.
func TestDuplicatedNumberedProposalAppliesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOrderedCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := a.putOnce("x"); err != nil {
			t.Fatal(err)
		}
		hear := deafen(a)
		b := c.other(a)
		hearB := deafen(b)
		var doubled atomic.Uint64
		c.net.setRepeat(func(_, _ string, m *raftpb.Message) bool {
			if m.Type == raftpb.Propose {
				doubled.Add(1)
			}
			return m.Type == raftpb.Propose
		})
		c.handOver(b)
		for range 10 {
			if _, err := a.putOnce("x"); err != nil {
				t.Fatal(err)
			}
		}
		hear()
		hearB()
		c.leaderAmong(term, c.nodes...)
		nd, _ := c.leader(term)
		rev, err := nd.putOnce("x")
		if err != nil {
			t.Fatal(err)
		}
		if got := nd.version(t, "x"); got != 12 {
			t.Errorf("put 12 times, and applied %d times at %d", got, rev)
		}
		if doubled.Load() == 0 {
			t.Fatal("no proposal was forwarded; the run shows nothing")
		}
	})
}

// A promise waits for a put when its replica's state is replaced by a snapshot. Whether
// the put is in there nobody knows here: the promise fails, whatever index the state
// is at.
func TestPromiseFailsWhenTheStateJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOrderedCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := a.putOnce("x"); err != nil {
			t.Fatal(err)
		}
		// The followers have the put, and the leader does not hear of it.
		c.net.setDrop(func(_, to string, m *raftpb.Message) bool {
			return to == c.addr(a.id) && m.Type == raftpb.ReplicateResp
		})
		put := make(chan error, 1)
		go func() {
			_, err := a.putOnce("x")
			put <- err
		}()
		time.Sleep(5 * time.Millisecond)
		promised := make(chan error, 1)
		go func() {
			_, err := a.data.Promise(context.Background(), 100, []keys.Span{keys.Point([]byte("x"))})
			promised <- err
		}()
		time.Sleep(5 * time.Millisecond)
		c.net.isolate(c.addr(a.id))
		b, _ := c.leader(term)
		for range 50 {
			if _, err := b.putOnce("y"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := b.host.snapshot(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := b.putOnce("y"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-promised:
			t.Fatalf("promised before the state jumped: %v", err)
		default:
		}
		c.net.heal()
		if err := <-put; !errors.Is(err, ErrTimeout) {
			t.Errorf("put: %v, want the unknown outcome", err)
		}
		if err := <-promised; !errors.Is(err, ErrNotLeader) {
			t.Errorf("promise: %v, want no promise", err)
		}
	})
}

// A process that stood still for 30 s forgets them: a lease that is renewed every 0.8
// of its TTL afterwards lives on, whenever its client is heard of first.
func TestStallThenSlowRenewals(t *testing.T) {
	for _, silence := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := newOrderedCluster(t, 1)
			defer c.close()
			nd, _ := c.leader(0)
			const id, ttl = 7, 5
			nd.grant(t, id, ttl)
			if _, err := nd.data.Renew(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			// No tick reaches the leader's clock.
			hear := deafen(nd)
			time.Sleep(30 * time.Second)
			hear()
			time.Sleep(silence)
			for i := range 20 {
				left, err := nd.data.Renew(t.Context(), id)
				if err != nil || left != ttl {
					t.Fatalf("%v after the stall, renewal %d: %d, %v", silence, i, left, err)
				}
				time.Sleep(ttl * time.Second * 8 / 10)
			}
		})
	}
}
