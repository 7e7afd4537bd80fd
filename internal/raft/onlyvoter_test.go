package raft

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
)

// atOnce is longer than a replica takes that is elected at once, and shorter than the shortest
// timeout of an election, 200 ms.
const atOnce = 100 * time.Millisecond

// leadsAtOnce starts a node, and fails if it does not lead at once.
func (c *cluster) leadsAtOnce(nd *testNode) {
	c.t.Helper()
	begin := time.Now()
	c.start(nd)
	if leader, _ := c.leader(0); leader != nd || time.Since(begin) > atOnce {
		c.t.Errorf("%d leads after %v", leader.id, time.Since(begin))
	}
}

// A replica that is its group's only voter leads at once, at its first start and at each further
// one, with entries to apply and without.
func TestLeadAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := newCluster(t, 1)
		defer c.close()
		a, _ := c.leader(0)
		if took := time.Since(begin); took > atOnce {
			t.Errorf("led after %v", took)
		}
		c.stop(a)
		c.leadsAtOnce(a)
		for range 50 {
			if _, err := c.add(a, "x"); err != nil {
				t.Fatal(err)
			}
		}
		c.stop(a)
		c.leadsAtOnce(a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.host.snapshot(ctx, 1); err != nil {
			t.Fatal(err)
		}
		c.stop(a)
		c.leadsAtOnce(a)
		if v, err := c.add(a, "x"); err != nil || v != 51 {
			t.Errorf("add: %d, %v", v, err)
		}
	})
}

// Who is its group's only voter is what dragonboat has applied: a group that shrank to one has one.
func TestLeadAloneWhenOthersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		for _, nd := range c.nodes {
			if nd == a {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			m, err := a.host.nh.SyncGetShardMembership(ctx, testShard)
			if err == nil {
				err = a.host.nh.SyncRequestDeleteReplica(ctx, testShard, nd.id, m.ConfigChangeID)
			}
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			c.stop(nd)
		}
		c.stop(a)
		c.leadsAtOnce(a)
	})
}

// A replica with others in its group does not stand for election when it starts, though it hears
// of no leader.
func TestLeadAloneNotBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		for _, nd := range c.nodes {
			if nd == a {
				continue
			}
			c.stop(nd)
			c.net.setDrop(func(_, to string, _ *raftpb.Message) bool { return to == c.addr(nd.id) })
			c.start(nd)
			time.Sleep(atOnce)
			c.net.heal()
			time.Sleep(atOnce)
		}
		if got := a.r.Serving(); got != term {
			t.Errorf("the leader served term %d and serves %d", term, got)
		}
	})
}

// While a replica reads its log at the start, dragonboat has it for the only voter where it was
// the first. What the log goes on with counts.
func TestOnlyVoter(t *testing.T) {
	for _, size := range []uint64{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, size)
			defer c.close()
			a, _ := c.leader(0)
			// The log begins with a change of members for each of the first.
			for index := range size + 2 {
				members := map[uint64]string{a.id: c.addr(a.id)}
				got := a.r.only(index, members)
				if want := index >= size; got != want {
					t.Errorf("the only voter of %d by what entry %d left: %v", size, index, got)
				}
			}
			if got, want := a.r.onlyVoter(), size == 1; got != want {
				t.Errorf("the only voter of %d: %v", size, got)
			}
		})
	}
}
