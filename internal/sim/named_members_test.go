package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/placement"
)

// runMembersNamed runs a test of a cluster whose members change, without faults.
func runMembersNamed(t *testing.T, members int, fn func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, options{seed: 1, splits: fourShards, snapshotEntries: never, tick: 50 * time.Millisecond, members: members})
		defer c.close()
		fn(t, c)
	})
}

// eventually waits until ok.
func (c *cluster) eventually(what string, ok func() bool) {
	c.tb.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.tb.Fatalf("not within a minute: %s%s", what, c.membersSaid())
		}
	}
}

// systemServes reports whether a node leads the system shard, also one that does not serve clients yet.
func (n *node) systemServes() bool {
	n.mu.Lock()
	p := n.opened
	n.mu.Unlock()
	return p != nil && len(p.replicas()) > 0 && p.replicas()[0].Serving() != 0
}

// A node that is being removed and starts again, when data shards have let go of it, hands over the system shard if it comes to lead
// it: it does not wait for those shards first.
func TestLeavingNodeHandsOverWhenItStartsAgain(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		one, three := c.nodes[0], c.nodes[2]
		c.placeAll(one)
		p := one.running()
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		if err := p.cluster.RemoveMember(ctx, three.id, p.cluster.State().Cluster.Members); err != nil {
			t.Fatal(err)
		}
		c.eventually("a data shard lets go of the node", func() bool {
			for _, d := range p.shards {
				if _, voters := d.Replica().Voters(); voters[three.replica] == "" {
					return true
				}
			}
			return false
		})
		// Nobody counts as live, so that the system shard keeps its members.
		c.setInterfere(func(k call) interference { return interference{refuse: k.name == "Applied"} })
		if err := three.die(false, c.rnd); err != nil {
			t.Fatal(err)
		}
		c.wg.Go(func() { c.revive(three) })
		c.eventually("the node leads the system shard", func() bool {
			if r := p.cluster.Replica(); r.Serving() != 0 {
				// A refused request is made again.
				_ = r.Transfer(three.replica)
			}
			return three.systemServes()
		})
		c.setInterfere(func(call) interference { return interference{} })
		c.eventually("the node is removed", func() bool { return p.cluster.State().Removed[three.id].ID != 0 })
		if _, voters := c.leader(ctx, placement.SystemShard).cluster.Replica().Voters(); len(voters) != 2 {
			t.Errorf("voters %v", voters)
		}
	})
}
