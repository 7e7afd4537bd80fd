//go:build soak

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

const (
	// lateFor is how long a node's traffic is late, lateLeases how many leases live clients
	// keep meanwhile, and lateTTL their TTL in seconds.
	lateFor    = 45 * time.Second
	lateLeases = 12
	lateTTL    = 15
)

// Live clients lose no lease while what one node sends and what it is sent is held up for 1.2 to
// 2.5 s, if it comes in the first half of a second: for longer than the election timeout, over and
// over. Clients that know that node alone may lose some.
func TestLeasesOverLateLinks(t *testing.T) {
	kinds := require(t, "late")
	seed := harness.Seed(t, "./e2e/cluster", 0)
	for _, shards := range []int{1, 4} {
		for _, leader := range []bool{true, false, true} {
			t.Run(fmt.Sprintf("%d shards, leader %v", shards, leader), func(t *testing.T) {
				c := newCluster(t, shards, kinds)
				node := c.leading()
				if !leader {
					node = (node + 1) % len(c.Nodes)
				}
				k := &lateKeepers{cluster: c, errs: make(map[string]int)}
				k.keep()
				before := k.elections()
				late, err := c.gear.Network.Delay(node, faults.HalfOfEverySecond(seed, 1200*time.Millisecond, 2500*time.Millisecond))
				c.must(err)
				ctx, cancel := context.WithTimeout(t.Context(), lateFor)
				defer cancel()
				k.ask(ctx)
				elections := k.elections() - before
				c.must(late.Close())
				lost := k.lost()
				t.Logf("node %d: held up %d times; %v changes of leaders; leases lost: %d of clients of all nodes, %d of those of this node, %d of those of others; of single renewals %d answered, failed: %q",
					node+1, late.Held(), elections, lost[-1], lost[node], lost[(node+1)%3]+lost[(node+2)%3], k.answered, k.failures())
				if lost[node] == lateLeases/len(c.Nodes) { // of etcd some are lost, in half of the runs
					t.Error("all leases of clients of the late node were lost")
				}
				if delete(lost, node); len(lost) > 0 {
					t.Errorf("leases that live clients kept were lost, by the node that they know: %v", lost)
				}
				if late.Held() == 0 || k.answered == 0 {
					t.Error("nothing was late, or nothing was answered; the run shows nothing")
				}
				c.healthy()
			})
		}
	}
}

// lateKeepers are the clients that keep leases.
type lateKeepers struct {
	*cluster
	// kept are the leases that clients keep.
	kept []keptLease
	// asked are leases that are renewed by single calls.
	asked []clientv3.LeaseID

	mu sync.Mutex
	// answered counts renewals by single calls, and errs those that failed; protected by mu.
	answered int
	errs     map[string]int
}

// leading returns a node that leads data shards, the most of them. An etcd does not tell.
func (c *cluster) leading() (node int) {
	c.t.Helper()
	if _, err := c.Nodes[0].ShardsLed(c.bound()); err == nil {
		return c.leader()
	}
	c.until("a leader", func(ctx context.Context) error {
		for i, client := range c.clients {
			s, err := client.Status(ctx, c.Nodes[i].Client)
			if err != nil {
				return err
			}
			if s.Leader == s.Header.MemberId {
				node = i
				return nil
			}
		}
		return errors.New("no node leads")
	})
	return node
}

// elections returns how many changes of leaders the nodes have seen.
func (k *lateKeepers) elections() (sum float64) {
	for _, n := range k.Nodes {
		v, err := n.Metric(k.t.Context(), "etcd_server_leader_changes_seen_total")
		k.must(err)
		sum += v
	}
	return sum
}

// grant makes a lease with a key on every shard.
func (k *lateKeepers) grant(client *clientv3.Client, name string) clientv3.LeaseID {
	k.t.Helper()
	g, err := client.Grant(k.bound(), lateTTL)
	k.must(err)
	for _, key := range inShards(k.shards, name) {
		_, err := client.Put(k.bound(), key, "", clientv3.WithLease(g.ID))
		k.must(err)
	}
	return g.ID
}

// keptLease is a lease that a client keeps.
type keptLease struct {
	id clientv3.LeaseID
	// closed is closed when the client has given it up.
	closed chan struct{}
	// node is the only one that the client knows, -1 where it knows all.
	node int
}

// keep grants leases and has a client of all nodes keep each until the test ends, and as many
// that clients of one node keep.
func (k *lateKeepers) keep() {
	k.t.Helper()
	for i := range lateLeases {
		k.keepBy(k.all(), -1, fmt.Sprintf("kept/%d", i))
		node := i % len(k.clients)
		k.keepBy(k.clients[node], node, fmt.Sprintf("kept/%d/%d", node, i))
		k.asked = append(k.asked, k.grant(k.clients[node], fmt.Sprintf("asked/%d", i)))
	}
}

func (k *lateKeepers) keepBy(client *clientv3.Client, node int, name string) {
	k.t.Helper()
	l := keptLease{id: k.grant(client, name), closed: make(chan struct{}), node: node}
	alive, err := client.KeepAlive(k.t.Context(), l.id)
	k.must(err)
	go func() {
		defer close(l.closed)
		for range alive {
		}
	}()
	k.kept = append(k.kept, l)
}

// ask renews as many others once a second, each through every node in turn, until ctx ends, and
// counts what fails. Those may be lost.
func (k *lateKeepers) ask(ctx context.Context) {
	var wg sync.WaitGroup
	for i, id := range k.asked {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				try, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
				_, err := k.clients[n%len(k.clients)].KeepAliveOnce(try, id)
				cancel()
				k.count(n%len(k.clients), err)
				pause(ctx, time.Second)
			}
		})
	}
	wg.Wait()
}

func (k *lateKeepers) count(node int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.answered++
		return
	}
	k.errs[fmt.Sprintf("node %d: %v", node+1, err)]++
}

// failures returns how often renewals failed, by error.
func (k *lateKeepers) failures() (all []string) {
	for _, err := range slices.Sorted(maps.Keys(k.errs)) {
		all = append(all, fmt.Sprintf("%d times %s", k.errs[err], err))
	}
	return all
}

// lost counts the leases that have ended, or that their clients gave up, by the node that the
// client knows.
func (k *lateKeepers) lost() map[int]int {
	lost := make(map[int]int)
	for i, l := range k.kept {
		gone := false
		select {
		case <-l.closed:
			gone = true
		default:
		}
		k.until("time to live", func(ctx context.Context) error {
			ttl, err := k.clients[i%len(k.clients)].TimeToLive(ctx, l.id)
			gone = gone || err == nil && ttl.TTL <= 0
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				gone, err = true, nil
			}
			return err
		})
		if gone {
			lost[l.node]++
		}
	}
	return lost
}
