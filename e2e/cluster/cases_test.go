package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// L03: a lease granted through one node is known to every other at once.
func TestGrantHerePutThere(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		for i := range harness.Sized(50, 1000) {
			g, err := c.clients[i%3].Grant(t.Context(), 60)
			c.must(err)
			for k, key := range inShards(shards, "lease") {
				if _, err := c.clients[(i+1+k)%3].Put(t.Context(), key, "", clientv3.WithLease(g.ID)); err != nil {
					t.Fatalf("put %s with the lease of round %d: %v", key, i, err)
				}
			}
		}
	})
}

// L07: a leader that stood still does not end leases that were renewed elsewhere.
func TestDeposedLeaderRevokesNothing(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		leader := c.leader()
		var ids []clientv3.LeaseID
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		healthy := []*clientv3.Client{c.clients[(leader+1)%3], c.clients[(leader+2)%3]}
		for i := range 12 {
			g, err := healthy[i%2].Grant(ctx, 5)
			c.must(err)
			ids = append(ids, g.ID)
			_, err = healthy[i%2].Put(ctx, inShards(4, strconv.Itoa(i))[i%4], "", clientv3.WithLease(g.ID))
			c.must(err)
		}
		deletes := healthy[0].Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithFilterPut())
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				for ctx.Err() == nil {
					try, stop := context.WithTimeout(ctx, 3*time.Second)
					_, err := healthy[i%2].KeepAliveOnce(try, id)
					stop()
					if errors.Is(err, rpctypes.ErrLeaseNotFound) {
						t.Errorf("lease %x is gone", id)
						return
					}
					pause(ctx, time.Second)
				}
			})
		}
		pause(ctx, time.Second)
		c.must(c.Nodes[leader].Freeze())
		pause(ctx, time.Duration(harness.Sized(6, 10))*time.Second)
		if c.leader() == leader {
			t.Fatal("nobody has taken over; the run shows nothing")
		}
		c.must(c.Nodes[leader].Thaw())
		pause(ctx, 6*time.Second)
		cancel()
		wg.Wait()
		for r := range deletes {
			for _, e := range r.Events {
				t.Errorf("%s was deleted", e.Kv.Key)
			}
		}
	})
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// L15: a lease whose time passes while there is no quorum ends soon after there is one
// again.
func TestLeaseEndsAfterLostQuorum(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		g, err := c.clients[0].Grant(t.Context(), 5)
		c.must(err)
		for _, key := range inShards(shards, "q") {
			_, err := c.clients[0].Put(t.Context(), key, "", clientv3.WithLease(g.ID))
			c.must(err)
		}
		c.must(c.Nodes[1].Kill())
		c.must(c.Nodes[2].Kill())
		pause(t.Context(), 8*time.Second)
		c.must(c.Nodes[1].Launch())
		c.must(c.Nodes[2].Launch())
		c.healthy()
		recovered := time.Now()
		for {
			left := 0
			for _, key := range inShards(shards, "q") {
				r, err := c.clients[0].Get(t.Context(), key)
				c.must(err)
				left += len(r.Kvs)
			}
			leases, err := c.clients[0].Leases(t.Context())
			c.must(err)
			if left == 0 && len(leases.Leases) == 0 {
				break
			}
			if time.Since(recovered) > 5*time.Second+2*promptly {
				t.Fatalf("%d keys and %d leases are left", left, len(leases.Leases))
			}
			pause(t.Context(), 100*time.Millisecond)
		}
	})
}

// K29: a lock that was acknowledged is held, whatever becomes of its leader: the lease
// is renewed at the next one, and nobody else gets the lock meanwhile.
func TestAcknowledgedLockSurvivesItsLeader(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		for round := range harness.Sized(2, 25) {
			leader := c.leader()
			mine, other := c.clients[(leader+1)%3], c.clients[(leader+2)%3]
			s, err := concurrency.NewSession(mine, concurrency.WithTTL(10))
			c.must(err)
			m := concurrency.NewMutex(s, fmt.Sprintf("%c/held/%d", 'a'+byte(round*9%26), round))
			c.must(m.Lock(t.Context()))
			c.must(c.Nodes[leader].Kill())
			before, err := mine.Get(t.Context(), m.Key())
			c.must(err)
			rival, err := concurrency.NewSession(other, concurrency.WithTTL(10))
			c.must(err)
			for range 5 {
				try, stop := context.WithTimeout(t.Context(), 2*time.Second)
				err := concurrency.NewMutex(rival, fmt.Sprintf("%c/held/%d", 'a'+byte(round*9%26), round)).TryLock(try)
				stop()
				if err == nil {
					t.Fatal("the lock was given to another")
				}
			}
			c.must(c.Nodes[leader].Launch())
			c.healthy()
			after, err := mine.Get(t.Context(), m.Key())
			c.must(err)
			if len(before.Kvs) != 1 || len(after.Kvs) != 1 || before.Kvs[0].CreateRevision != after.Kvs[0].CreateRevision {
				t.Errorf("the holder's key was %v, is %v", before.Kvs, after.Kvs)
			}
			c.must(m.Unlock(t.Context()))
			c.must(s.Close())
			c.must(rival.Close())
		}
	})
}

// C05: a read that began after a write was acknowledged sees it, also at a leader that
// stood still meanwhile.
func TestNoStaleReadFromPausedLeader(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		keys := inShards(shards, "stale")
		for round := range harness.Sized(2, 50) {
			leader := c.leader()
			c.must(c.Nodes[leader].Freeze())
			writer := c.clients[(leader+1)%3]
			for _, key := range keys {
				try, stop := context.WithTimeout(t.Context(), 10*time.Second)
				_, err := writer.Put(try, key, strconv.Itoa(round))
				stop()
				c.must(err)
			}
			// The reads wait in the stopped leader's socket.
			var wg sync.WaitGroup
			var answered atomic.Int32
			for _, key := range keys {
				wg.Go(func() {
					try, stop := context.WithTimeout(t.Context(), 10*time.Second)
					defer stop()
					r, err := c.clients[leader].Get(try, key)
					if err == nil {
						answered.Add(1)
					}
					if err == nil && (len(r.Kvs) != 1 || string(r.Kvs[0].Value) != strconv.Itoa(round)) {
						t.Errorf("%s is %v after %d was written", key, r.Kvs, round)
					}
				})
			}
			pause(t.Context(), 50*time.Millisecond)
			c.must(c.Nodes[leader].Thaw())
			wg.Wait()
			if answered.Load() == 0 {
				t.Errorf("round %d: no read was answered; it shows nothing", round)
			}
			c.healthy()
		}
	})
}

// C07: sessions with clients of all nodes survive the death and the stop of any node.
func TestSessionsSurviveTheirNode(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		all := c.all()
		var sessions []*concurrency.Session
		for range 12 {
			s, err := concurrency.NewSession(all, concurrency.WithTTL(10))
			c.must(err)
			sessions = append(sessions, s)
		}
		for _, node := range []int{(c.leader() + 1) % 3, c.leader()} {
			c.must(c.Nodes[node].Kill())
			pause(t.Context(), time.Duration(harness.Sized(3, 6))*time.Second)
			c.must(c.Nodes[node].Launch())
			c.healthy()
		}
		for i, s := range sessions {
			select {
			case <-s.Done():
				t.Errorf("session %d ended", i)
			default:
			}
		}
	})
}

// C01: a node that is cut off from the others answers its clients in time, and clients of
// all nodes go on.
func TestNodeCutOffFromItsPeers(t *testing.T) {
	kinds := require(t, "isolate")
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, kinds)
		all := c.all()
		for node := range harness.Sized(1, len(c.Nodes)) {
			c.must(c.gear.Network.Isolate(node))
			pause(t.Context(), 3*time.Second)
			try, stop := context.WithTimeout(t.Context(), 15*time.Second)
			begin := time.Now()
			if _, err := c.clients[node].Put(try, "m/cut", "x"); err == nil {
				t.Errorf("node %d acknowledged a write without the others", node+1)
			}
			if took := time.Since(begin); try.Err() != nil {
				t.Errorf("node %d did not answer within %v", node+1, took)
			}
			stop()
			deadline := time.Now().Add(patience)
			for _, key := range inShards(shards, "alive") {
				for {
					try, stop := context.WithTimeout(t.Context(), 3*time.Second)
					_, err := all.Put(try, key, strconv.Itoa(node))
					stop()
					if err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("node %d is cut off: put %s: %v", node+1, key, err)
					}
				}
			}
			c.must(c.gear.Network.Heal())
			c.healthy()
		}
	})
}
