package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// L13: a lease with very many keys ends while leaders move and die: at one revision in
// each shard, so that no reader sees half of it, and watches hear of every key (9294,
// kubernetes/kubernetes#96836, 15993, cilium/cilium#25966, t4db/t4#121).
func TestLeaseWithManyKeysEndsWhileLeadersChange(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		for _, way := range []string{"move", "kill"} {
			m := &manyKeys{cluster: c, name: way, each: harness.Sized(4000, 50_000) / shards}
			m.attach()
			m.end(way == "kill")
		}
	})
}

// manyKeys is a lease with as many keys in each shard.
type manyKeys struct {
	*cluster
	name  string
	each  int
	lease clientv3.LeaseID
}

// attach makes the keys, and sees that the last ones are made as fast as the first.
func (m *manyKeys) attach() {
	const batch, abreast = 100, 5
	m.t.Helper()
	g, err := m.clients[0].Grant(m.bound(), 3600)
	m.must(err)
	m.lease = g.ID
	var took []time.Duration
	for _, prefix := range inShards(m.shards, m.name+"/") {
		for i := 0; i < m.each; i += batch * abreast {
			begin := time.Now()
			var wg sync.WaitGroup
			for part := range abreast {
				var puts []clientv3.Op
				for k := range batch {
					puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%06d", prefix, i+part*batch+k), "", clientv3.WithLease(m.lease)))
				}
				wg.Go(func() {
					if _, err := m.clients[part%3].Txn(m.bound()).Then(puts...).Commit(); err != nil {
						m.t.Error(err)
					}
				})
			}
			wg.Wait()
			took = append(took, time.Since(begin))
		}
	}
	half := len(took) / 2
	slices.Sort(took[:half])
	slices.Sort(took[half:])
	early, late := took[half/2], took[half+half/2]
	if late > 4*early+200*time.Millisecond {
		m.t.Errorf("%d keys took %v at first, %v in the end", batch*abreast, early, late)
	}
}

// end revokes the lease through a node that follows, while leaders change.
func (m *manyKeys) end(kill bool) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.bound())
	defer cancel()
	leader := m.leader()
	through := m.clients[(leader+1)%3]
	var watches []clientv3.WatchChan
	for _, prefix := range inShards(m.shards, m.name+"/") {
		watches = append(watches, through.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut()))
	}
	var others sync.WaitGroup
	var slowest atomic.Int64
	for i, prefix := range inShards(m.shards, m.name+"/") {
		others.Go(func() { m.read(ctx, through, prefix) })
		others.Go(func() { m.put(ctx, through, inShards(m.shards, "other")[i], &slowest) })
	}
	if kill {
		m.must(m.Nodes[leader].Kill())
	}
	others.Go(func() {
		for !kill && ctx.Err() == nil {
			_ = m.moveLeaders(ctx) // while leaders change there may be none to ask
			pause(ctx, 50*time.Millisecond)
		}
	})
	m.until("revoke", func(ctx context.Context) error {
		_, err := through.Revoke(ctx, m.lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil // an earlier try was carried out
		}
		return err
	})
	for i, prefix := range inShards(m.shards, m.name+"/") {
		m.deletes(watches[i], prefix)
	}
	cancel()
	others.Wait()
	m.gone(m.name+"/", promptly)
	if slow := time.Duration(slowest.Load()); !kill && slow > 2*promptly {
		m.t.Errorf("another client's put took %v", slow)
	} else {
		m.t.Logf("%s: the slowest put of another client took %v", m.name, slow)
	}
	m.must(m.Nodes[leader].Launch())
	m.healthy()
}

// read sees that a shard has all keys of the lease, or none.
func (m *manyKeys) read(ctx context.Context, c *clientv3.Client, prefix string) {
	for ctx.Err() == nil {
		r, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && r.Count != 0 && r.Count != int64(m.each) {
			m.t.Errorf("a reader sees %d of %d keys of %s", r.Count, m.each, prefix)
			return
		}
		pause(ctx, time.Millisecond)
	}
}

// put writes something else a hundred times a second.
func (m *manyKeys) put(ctx context.Context, c *clientv3.Client, key string, slowest *atomic.Int64) {
	for ctx.Err() == nil {
		begin := time.Now()
		if _, err := c.Put(ctx, key, ""); err != nil && ctx.Err() == nil && !unavailable(err) {
			m.t.Error(err)
		}
		slowest.Store(max(slowest.Load(), int64(time.Since(begin))))
		pause(ctx, 10*time.Millisecond)
	}
}

// deletes reads the end of a shard's keys from a watch.
func (m *manyKeys) deletes(watch clientv3.WatchChan, prefix string) {
	m.t.Helper()
	seen, at := make(map[string]bool), int64(0)
	for r := range watch {
		for _, e := range r.Events {
			if seen[string(e.Kv.Key)] || at != 0 && e.Kv.ModRevision != at {
				m.t.Fatalf("%s was deleted at %d, %d keys before it at %d", e.Kv.Key, e.Kv.ModRevision, len(seen), at)
			}
			seen[string(e.Kv.Key)], at = true, e.Kv.ModRevision
		}
		if len(seen) == m.each {
			return
		}
	}
	m.t.Fatalf("the watch of %s ended after %d of %d deletes", prefix, len(seen), m.each)
}

// L19: while a leader dies, grants and renewals fail only in ways that clients try again,
// on every way to ask: streams, single calls, JSON. Sessions stay (21671, 6922, 7023,
// patroni/patroni#3407, patroni/patroni#3595).
func TestRenewalsSurviveTheirLeader(t *testing.T) {
	const ttl = 10
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		for range harness.Sized(1, 5) {
			k := &keepers{cluster: c}
			ctx, cancel := context.WithCancel(t.Context())
			k.sessions(ctx, 4, ttl)
			for i := range c.Nodes {
				for range 4 { // leases with several homes
					id := k.grant(i, ttl)
					k.running.Go(func() { k.stream(ctx, i, id) })
					k.running.Go(func() { k.once(ctx, (i+1)%3, id) })
					k.running.Go(func() { k.json(ctx, (i+2)%3, id) })
				}
				k.running.Go(func() { k.grants(ctx, i) })
			}
			pause(ctx, time.Second)
			leader := c.leader()
			c.must(c.Nodes[leader].Kill())
			pause(ctx, 3*time.Second)
			c.must(c.Nodes[leader].Launch())
			c.healthy()
			before := k.renewed.Load()
			pause(ctx, ttl*time.Second)
			if k.renewed.Load() == before {
				t.Error("the sessions' leases are not renewed any more")
			}
			cancel()
			k.running.Wait()
			k.ended()
		}
	})
}

// L21: watches that read all of history through a node don't keep renewals from getting
// through it (13156, 8387).
func TestReplayStarvesNoRenewals(t *testing.T) {
	const watches, leases = 20, 50
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		// In every run the machine may be busy with much else.
		ttl := int64(harness.Sized(10, 5))
		node := (c.leader() + 1) % 3
		c.fill("history", harness.Sized(6000, 300_000), 200)
		keeper, err := faults.Dial(c.Nodes[node].Client)
		c.must(err)
		t.Cleanup(func() { keeper.Close() })
		var ids []clientv3.LeaseID
		var kept []<-chan *clientv3.LeaseKeepAliveResponse
		for range leases {
			g, err := keeper.Grant(c.bound(), ttl)
			c.must(err)
			alive, err := keeper.KeepAlive(t.Context(), g.ID)
			c.must(err)
			ids, kept = append(ids, g.ID), append(kept, alive)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(harness.Sized(8, 60))*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		var events atomic.Int64
		for range watches {
			wg.Go(func() {
				var read int64
				for ctx.Err() == nil {
					read += c.replay(ctx, node)
				}
				if read == 0 {
					t.Error("a watch of all history read nothing")
				}
				events.Add(read)
			})
		}
		for i, alive := range kept {
			wg.Go(func() {
				for range alive {
					if ctx.Err() != nil {
						return
					}
				}
				t.Errorf("lease %x was lost", ids[i])
			})
		}
		wg.Wait()
		for _, id := range ids {
			left, err := keeper.TimeToLive(c.bound(), id)
			if err != nil || left.TTL <= 0 {
				t.Errorf("lease %x: %v, %v", id, left, err)
			}
		}
		t.Logf("%d events were read", events.Load())
	})
}

// S03: a lease with a key in every shard takes all of them along, and nothing before its
// time (oxia-db/oxia#364, oxia-db/oxia#525, oxia-db/oxia-client-java#135,
// oxia-db/oxia-client-java#138).
func TestLeaseWithKeysInEveryShard(t *testing.T) {
	t.Parallel()
	const soon = 5*time.Second + promptly
	c := newCluster(t, 4, nil)
	for i, id := range c.spread("revoked", 8, 60) {
		_, err := c.clients[i%3].Revoke(c.bound(), id)
		c.must(err)
	}
	c.gone("revoked", 0)

	c.spread("expired", 8, 3)
	c.gone("expired", 3*time.Second+soon)

	// Leaders go away and come back.
	c.spread("moved", 8, 5)
	for range c.Nodes {
		c.until("move leaders", c.moveLeaders)
	}
	c.gone("moved", 2*5*time.Second+soon) // no leader gives a lease more than its TTL

	for round := range harness.Sized(3, 25) {
		name := fmt.Sprintf("middle/%d", round)
		id := c.spread(name, 1, 60)[0]
		killed := c.killWhileRevoking(id, time.Duration(round*7%25)*time.Millisecond)
		c.gone(name, soon-time.Since(killed))
		c.healthy()
	}

	// No shard has a quorum for less than the TTL. Renewals are calls that try again: a
	// client's loop gives a lease up by its own clock.
	all := c.all()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var renewing sync.WaitGroup
	for _, id := range c.spread("kept", 8, 10) {
		renewing.Go(func() {
			for ctx.Err() == nil {
				if _, err := all.KeepAliveOnce(ctx, id); errors.Is(err, rpctypes.ErrLeaseNotFound) {
					t.Errorf("lease %x is gone", id)
					return
				}
				pause(ctx, time.Second)
			}
		})
	}
	c.must(c.Nodes[1].Kill())
	c.must(c.Nodes[2].Kill())
	pause(t.Context(), 3*time.Second)
	c.must(c.Nodes[1].Launch())
	c.must(c.Nodes[2].Launch())
	c.healthy()
	pause(t.Context(), 10*time.Second)
	for _, prefix := range inShards(c.shards, "kept") {
		if n := c.count(prefix); n != 8 {
			t.Errorf("%d of 8 keys are left in %s", n, prefix)
		}
	}
	cancel()
	renewing.Wait()
}

// spread grants leases and puts a key of each into every shard.
func (c *cluster) spread(name string, n int, ttl int64) (ids []clientv3.LeaseID) {
	c.t.Helper()
	for i := range n {
		g, err := c.clients[i%3].Grant(c.bound(), ttl)
		c.must(err)
		ids = append(ids, g.ID)
		for k, key := range inShards(c.shards, fmt.Sprintf("%s/%d", name, i)) {
			_, err := c.clients[(i+k)%3].Put(c.bound(), key, "", clientv3.WithLease(g.ID))
			c.must(err)
		}
	}
	return ids
}

// killWhileRevoking revokes a lease, and kills a leader meanwhile, which comes back. It
// returns when that was.
func (c *cluster) killWhileRevoking(id clientv3.LeaseID, after time.Duration) (killed time.Time) {
	c.t.Helper()
	leader := c.leader()
	asked := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		close(asked)
		_, _ = c.clients[(leader+1)%3].Revoke(c.bound(), id) // carried out or not
	})
	<-asked
	pause(c.t.Context(), after)
	killed = time.Now()
	c.must(c.Nodes[leader].Kill())
	wg.Wait()
	c.must(c.Nodes[leader].Launch())
	// A call that failed is made again, as clients do.
	c.until("revoke", func(ctx context.Context) error {
		_, err := c.clients[(leader+1)%3].Revoke(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
	return killed
}

// fill writes so many revisions, a few keys over and over in each shard.
func (c *cluster) fill(name string, revisions, abreast int) {
	c.t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	keys := inShards(c.shards, name)
	for w := range abreast {
		wg.Go(func() {
			for {
				n := int(next.Add(1))
				if n > revisions {
					return
				}
				key := fmt.Sprintf("%s/%d", keys[n%len(keys)], n%1000)
				_, err := c.clients[w%3].Put(c.t.Context(), key, "a value of some length")
				for err != nil && unavailable(err) { // a busy machine may change its leaders
					_, err = c.clients[w%3].Put(c.t.Context(), key, "a value of some length")
				}
				if err != nil {
					c.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// replay watches all keys from the first revision through a node, on a connection of its
// own, until it has caught up, and returns how many events there were.
func (c *cluster) replay(ctx context.Context, node int) (events int64) {
	client, err := faults.Dial(c.Nodes[node].Client)
	if err != nil {
		c.t.Error(err)
		return 0
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	head, err := client.Get(ctx, "head")
	if err != nil {
		return 0
	}
	for r := range client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		events += int64(len(r.Events))
		if n := len(r.Events); n > 0 && r.Events[n-1].Kv.ModRevision >= head.Header.Revision {
			break
		}
	}
	return events
}
