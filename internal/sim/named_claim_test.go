package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
)

// promiseTogether has node 1 promise all keys of a shard up to rev as those promise that
// watches wait for, and returns what comes of it within a time.
func (c *cluster) promiseTogether(id uint64, rev int64, within time.Duration) error {
	c.tb.Helper()
	return c.promiseAt(1, id, rev, within)
}

// promiseAt is promiseTogether of another node.
func (c *cluster) promiseAt(node, id uint64, rev int64, within time.Duration) (err error) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(c.tb.Context(), within)
	defer cancel()
	answers := 0
	shard.PromiseEach(ctx, rev, []*shard.Data{c.node(node).shards[id]}, func(_ *shard.Data, _ uint64, failed error) {
		answers++
		err = failed
	})
	if answers != 1 {
		c.tb.Errorf("%d answers for one shard", answers)
	}
	return err
}

// depose has node 3 succeed node 1 as the leader of shard B, which node 1 does not hear, and
// gives a put a number of the new term, which it returns. From then on node 1 hears nothing of
// the shards in deaf either.
func (c *cluster) depose(deaf ...uint64) int64 {
	c.tb.Helper()
	c.replace(deaf...)
	return c.node(3).put(c.tb, "b/x", "1")
}

// replace is depose without the put.
func (c *cluster) replace(deaf ...uint64) {
	c.tb.Helper()
	if err := c.node(1).shards[shardB].Replica().Transfer(3); err != nil {
		c.tb.Fatal(err)
	}
	deaf = append(deaf, shardB)
	c.net.setDecide(func(l link, _ bool, m *raftpb.Message) fate {
		return fate{lose: l.to == 1 && slices.Contains(deaf, m.ShardID)}
	})
	for range 10_000 {
		if c.leads(shardB) == c.node(3) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	c.tb.Fatal("node 3 does not succeed")
}

// Once Raft has proved a leadership, the oracle does so for promises: no read of Raft in the
// shard is needed.
func TestOracleProvesALeadership(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		for i := range 3 {
			rev := c.node(3).put(t, "a/x", "1")
			if err := c.promiseTogether(shardB, rev, time.Second); err != nil {
				t.Fatalf("promise %d: %v", i, err)
			}
			if i == 1 {
				c.net.setDecide(func(_ link, system bool, m *raftpb.Message) fate { return fate{lose: !system && m.ShardID == shardB} })
			}
		}
	})
}

// A leader has been deposed and does not know it. Its successor has numbers: nothing is
// promised up to them, whatever the oracle that is asked knows of the two.
func TestClaimOfADeposedLeader(t *testing.T) {
	for _, tc := range []struct {
		name string
		// unnamed says that the successor's node is of a version that does not say who asks.
		unnamed bool
		// moved says that another node has become the oracle since.
		moved bool
	}{{name: "noted"}, {name: "unnamed", unnamed: true}, {name: "another oracle", moved: true}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(c *cluster) {
				t := c.tb
				c.place(placement.SystemShard, c.nodes[1])
				for range 2 {
					if err := c.promiseTogether(shardB, c.node(3).put(t, "a/x", "1"), time.Second); err != nil {
						t.Fatal(err)
					}
				}
				c.node(3).unnamed.Store(tc.unnamed)
				old := c.node(1).shards[shardB].Replica()
				term := old.Serving()
				newer := c.depose()
				if tc.moved {
					c.place(placement.SystemShard, c.nodes[2])
				}
				for range 2 { // the second with what the first has learned
					if err := c.promiseTogether(shardB, newer, 2*tick); err == nil {
						t.Errorf("revision %d was promised by the leader of before", newer)
					}
				}
				if old.Serving() != term {
					c.unshown("the deposed leader knows")
				}
			})
		})
	}
}

// A leader and the oracle, on one node, have both been deposed and don't know it. The
// successor has numbers of the new oracle, of which the old one has noted nothing.
func TestClaimAtADeposedOracle(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardC, c.nodes[2])
		for range 2 {
			if err := c.promiseTogether(shardB, c.node(3).put(t, "a/x", "1"), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		leader, oracle := c.node(1).shards[shardB].Replica(), c.node(1).cluster.Replica()
		term, ofOracle := leader.Serving(), oracle.Serving()
		c.net.setDecide(func(l link, system bool, _ *raftpb.Message) fate { return fate{lose: system && l.to == 1} })
		c.succeed()
		newer := c.depose(placement.SystemShard)
		if err := c.promiseTogether(shardB, newer, 2*tick); err == nil {
			t.Errorf("revision %d was promised by the leader of before", newer)
		}
		if leader.Serving() != term || oracle.Serving() != ofOracle {
			c.unshown("the deposed leader or oracle knows")
		}
	})
}

// Raft has proved a leadership, and whoever asked for that stands still. Meanwhile there is a
// successor with numbers, and after that another oracle, which knows of none of them. The
// proof is from before its time.
func TestProofFromBeforeTheOraclesTime(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		old := c.node(1).shards[shardB].Replica()
		term := old.Serving()
		reached, resume := c.stallOnce(1, shardB, "read index")
		confirmed := meanwhile(func() (struct{}, error) { return struct{}{}, old.Confirm(t.Context()) })
		<-reached
		newer := c.depose()
		c.place(placement.SystemShard, c.nodes[2])
		// Another shard has the node hear of the new oracle.
		if err := c.promiseTogether(shardA, newer, time.Second); err != nil {
			t.Fatal(err)
		}
		resume()
		if _, err := confirmed.wait(); err != nil {
			c.unshown("confirm: %v", err)
		}
		if err := c.promiseTogether(shardB, newer, 2*tick); err == nil {
			t.Errorf("revision %d was promised by the leader of before", newer)
		}
		if old.Serving() != term {
			c.unshown("the deposed leader knows")
		}
	})
}
