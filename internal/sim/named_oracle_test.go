package sim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// hooked is a context that runs a function when it is first asked whether it has ended,
// as a proof of leadership does before it begins.
type hooked struct {
	context.Context
	once *sync.Once
	hook func()
}

func (h hooked) Err() error {
	h.once.Do(h.hook)
	return h.Context.Err()
}

// succeed has node 2 succeed node 1 as the leader of the system shard and gives a put
// a number of the new term, which it returns.
func (c *cluster) succeed() int64 {
	c.tb.Helper()
	if err := c.node(1).cluster.Replica().Transfer(2); err != nil {
		c.tb.Fatal(err)
	}
	for range 10_000 {
		if c.leads(placement.SystemShard) == c.node(2) {
			return c.node(3).put(c.tb, "c/x", "1")
		}
		time.Sleep(time.Millisecond)
	}
	c.tb.Fatal("node 2 does not succeed")
	return 0
}

// An oracle is asked that has been deposed and does not know it. Before it proves that it
// leads it is elected again, so that the proof succeeds: of another term than that of the
// numbers. Higher ones were in use before the question was sent.
func TestOracleElectedAgain(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardC, c.nodes[2])
		old := c.node(1)
		if _, err := old.cluster.Ask(t.Context(), 1, raft.Leading{}); err != nil {
			t.Fatal(err) // there are numbers left
		}
		c.net.setDecide(func(l link, system bool, _ *raftpb.Message) fate { return fate{lose: system && l.to == 1} })
		term := old.cluster.Replica().Serving()
		newer := c.succeed()
		if old.cluster.Replica().Serving() != term {
			c.unshown("the deposed oracle knows")
		}
		asked := hooked{t.Context(), new(sync.Once), func() {
			c.net.setDecide(nil)
			c.place(placement.SystemShard, c.nodes[0])
		}}
		b, err := old.cluster.Ask(asked, 1, raft.Leading{})
		if old.cluster.Replica().Serving() <= term {
			c.unshown("it was not elected again")
		}
		if !errors.Is(err, raft.ErrNotLeader) {
			t.Errorf("answered %+v, %v, after a put at %d", b, err, newer)
		}
	})
}

// stopper is the leadership of a shard whose end takes until it is told.
type stopper struct{ end chan struct{} }

func (stopper) Began(uint64) {}
func (s stopper) Ended()     { <-s.end }
func (stopper) Tick()        {}

// deafenSystem has node 1 not hear, until end is closed, who leads what on the hosts of the
// system shard, other than those hosts' Raft: the one who tells it waits for a shard that
// is there for that alone.
func (c *cluster) deafenSystem(end chan struct{}) {
	c.tb.Helper()
	const id = 99
	var replicas []*raft.Replica
	for _, n := range c.nodes {
		p := n.running()
		machine, err := system.Open(p.db, raft.Prefix(id, n.id))
		if err != nil {
			c.tb.Fatal(err)
		}
		config := raft.ReplicaConfig{ShardID: id, ReplicaID: n.id, Members: n.targets("system"), Machine: machine, Bind: func(*raft.Replica) {}}
		if n.id == 1 {
			config.Leads = stopper{end}
		}
		r, err := p.system.Start(config)
		if err != nil {
			c.tb.Fatal(err)
		}
		replicas = append(replicas, r)
	}
	move := func(to int) {
		for range 10_000 {
			if replicas[to].Serving() != 0 {
				return
			}
			for _, r := range replicas {
				// A refused request is made again.
				_ = r.Transfer(uint64(to + 1))
			}
			time.Sleep(5 * time.Millisecond)
		}
		c.tb.Fatalf("node %d does not lead", to+1)
	}
	move(0)
	move(1)
}

// A deposed oracle that does not know it has its ReadIndex completed by its successor. It
// answers nothing all the same.
func TestCompletedReadIndexDoesNotMakeAnOracle(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardC, c.nodes[2])
		old := c.node(1)
		end := make(chan struct{})
		defer close(end)
		c.deafenSystem(end)
		if _, err := old.cluster.Ask(t.Context(), 1, raft.Leading{}); err != nil {
			t.Fatal(err) // there are numbers left
		}
		term := old.cluster.Replica().Serving()
		newer := c.succeed()
		for _, count := range []int{0, 1} {
			b, err := old.cluster.Ask(t.Context(), count, raft.Leading{})
			if old.cluster.Replica().Serving() != term {
				c.unshown("the deposed oracle knows")
			}
			if !errors.Is(err, raft.ErrNotLeader) {
				t.Errorf("asked for %d, answered %+v, %v, after a put at %d", count, b, err, newer)
			}
		}
	})
}

// handOver has the leader of the system shard hand over to a node as a node does that stops.
func (c *cluster) handOver(to uint64) error {
	from, replica := c.leads(placement.SystemShard), c.node(to).cluster.Replica()
	ctx, cancel := context.WithTimeout(c.tb.Context(), 2*electionTicks*tick)
	defer cancel()
	resume := from.cluster.Release(ctx)
	defer resume()
	return from.cluster.Replica().HandOver(ctx, to, func(context.Context) (uint64, error) { return replica.Applied(), nil })
}

// A planned hand-over of the oracle leaves no number out.
func TestHandedOverOracleLosesNothing(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		rev := c.node(3).put(t, "a/x", "1")
		for i, to := range []uint64{2, 3, 1, 2} {
			if err := c.handOver(to); err != nil {
				t.Fatal(err)
			}
			for j, key := range []string{"a/x", "b/x", "c/x", "d/x"} {
				next := c.node(3).put(t, key, "2")
				if next != rev+1 {
					t.Errorf("hand-over %d, put %d: revision %d after %d", i, j, next, rev)
				}
				rev = next
			}
		}
	})
}

// While the oracle can't know whether its limit is lowered it hands out nothing that may be
// handed out again, though its leadership stays.
func TestLoweredLimitInDoubt(t *testing.T) {
	bubble(t, func(c *cluster) {
		t, old := c.tb, c.node(1)
		if _, err := old.cluster.Ask(t.Context(), 1, raft.Leading{}); err != nil {
			t.Fatal(err) // there are numbers left
		}
		var lost atomic.Bool
		lost.Store(true)
		c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
			return fate{lose: system && lost.Load() && entries(l, m)}
		})
		bound := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 2*tick)
			t.Cleanup(cancel)
			return ctx
		}
		old.cluster.Release(bound())()
		before, err := old.cluster.Ask(bound(), 0, raft.Leading{})
		if err != nil {
			t.Fatal(err) // reads go on
		}
		doubtful, err := old.cluster.Ask(bound(), 1, raft.Leading{})
		if err == nil {
			t.Errorf("number %d was handed out in doubt", doubtful.First)
		}
		lost.Store(false)
		for old.cluster.State().Order.Limit != before.Newest {
			time.Sleep(tick)
		}
		again, err := old.cluster.Ask(t.Context(), 1, raft.Leading{})
		if err != nil || again.First <= before.Newest {
			t.Errorf("the leadership stayed: %+v, %v", again, err)
		}
		if rev := c.succeed(); rev <= again.First || rev <= doubtful.First {
			t.Errorf("revision %d after %d and %d", rev, again.First, doubtful.First)
		}
	})
}
