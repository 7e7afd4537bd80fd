package raft

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
)

func TestOldLog(t *testing.T) {
	for _, tc := range []struct {
		old  oldLog
		p    progress
		want bool
	}{
		{oldLog{}, progress{}, true},
		{oldLog{index: 7, term: 2}, progress{index: 6, term: 2}, false},
		{oldLog{index: 7, term: 2}, progress{index: 7, term: 1}, true},
		{oldLog{index: 7, term: 2}, progress{index: 5, term: 3}, true},
		{oldLog{index: 7, term: 2}, progress{index: 5, term: 2}, false},
	} {
		if got := tc.old.recovered(tc.p); got != tc.want {
			t.Errorf("%+v behind a log that ended at %+v has recovered: %v", tc.p, tc.old, got)
		}
	}
}

// crash ends a node as a power cut does: what of its state was not synced is lost.
func (c *cluster) crash(nd *testNode) {
	c.t.Helper()
	mem, ok := nd.state.(*pvfs.MemFS)
	if !ok {
		c.t.Fatal("the state is on no memory file system")
	}
	clone := mem.CrashClone(pvfs.CrashCloneCfg{})
	c.stop(nd)
	nd.state = clone
}

func crashableCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, name: t.Name(), net: &network{}}
	for i := uint64(1); i <= 3; i++ {
		c.nodes = append(c.nodes, &testNode{id: i, raftFS: raftvfs.NewMem(), state: pvfs.NewCrashableMem()})
	}
	for _, nd := range c.nodes {
		c.start(nd)
	}
	return c
}

// A replica whose state stepped back when its process was killed knows that it did, until a
// leader has led it on to where it had been.
func TestReplicaKnowsWhatItShowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crashableCluster(t)
		defer c.close()
		l, _ := c.leader(0)
		f := c.nodes[l.id%3]
		const adds = 50
		for range adds {
			if _, err := c.add(l, "x"); err != nil {
				t.Fatal(err)
			}
		}
		await(t, func() bool { return f.m.get("x") == adds })
		c.crash(f)
		c.start(f)
		if f.m.get("x") == adds {
			t.Fatal("the state has not stepped back")
		}
		if f.r.Recovered() {
			t.Errorf("a state that has %d of %d counts as recovered", f.m.get("x"), adds)
		}
		if err := f.r.AwaitRecovered(t.Context()); err != nil {
			t.Error(err)
		}
		if got := f.m.get("x"); got != adds || !f.r.Recovered() {
			t.Errorf("recovered (%v) with %d of %d", f.r.Recovered(), got, adds)
		}
	})
}

// A replica that finds no leader shows in the end what its log knew to be committed.
func TestReplicaWithoutLeaderIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crashableCluster(t)
		defer c.close()
		l, _ := c.leader(0)
		f := c.nodes[l.id%3]
		c.net.isolate(c.addr(f.id))
		await(t, func() bool { return f.r.Leader().ReplicaID == 0 })
		// Its log had an entry that it can't know to be committed.
		f.r.mu.Lock()
		f.r.old = oldLog{index: f.r.applied.index + 1, term: f.r.applied.term}
		f.r.recovered.Store(false)
		f.r.leaderless = time.Now()
		f.r.mu.Unlock()
		began := time.Now()
		patience := leaderlessElections * f.host.election()
		short, cancel := context.WithTimeout(t.Context(), patience-time.Millisecond)
		defer cancel()
		if err := f.r.AwaitRecovered(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("awaited for %s: %v", time.Since(began), err)
		}
		if err := f.r.AwaitRecovered(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < patience || took > patience+time.Second {
			t.Errorf("it took %s, not %s", took, patience)
		}
		if f.r.Recovered() {
			t.Error("a replica without a leader has recovered")
		}
		c.net.heal()
		await(t, func() bool { return f.r.Leader().ReplicaID != 0 })
		if l, _ := c.leader(0); l.r.Serving() != 0 {
			_, _ = c.add(l, "x")
		}
		await(t, f.r.Recovered)
	})
}

// Entries of a leader that was cut off are never committed; a replica that has them has
// recovered all the same when a later term has begun.
func TestReplicaRecoversWithoutItsTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crashableCluster(t)
		defer c.close()
		old, term := c.leader(0)
		if _, err := c.add(old, "x"); err != nil {
			t.Fatal(err)
		}
		c.net.isolate(c.addr(old.id))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		for range 20 {
			_, _ = old.r.Propose(ctx, kindAdd, []byte("x")) // nobody answers
		}
		cancel()
		c.crash(old)
		// The others go on with as little as they can.
		if l, _ := c.leader(term); l == old {
			t.Fatal("the leader that was cut off leads")
		}
		c.start(old)
		c.net.heal()
		await(t, old.r.Recovered)
		if got := old.m.get("x"); got != 1 {
			t.Errorf("recovered with %d of 1", got)
		}
	})
}
