package raft

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/vfs"
)

// join starts a node that is to be added.
func (c *cluster) join(id uint64) *testNode {
	c.t.Helper()
	nd := &testNode{id: id, raftFS: vfs.NewMem(), state: pvfs.NewMem(), joins: true}
	c.nodes = append(c.nodes, nd)
	c.start(nd)
	return nd
}

// step makes a step of membership at the leader, against the members as they are.
func (c *cluster) step(change func(r *Replica, version uint64) error) {
	c.t.Helper()
	for range 20 {
		leader, _ := c.leader(0)
		m, err := leader.r.Members(c.t.Context())
		if err == nil {
			err = change(leader.r, m.Version)
		}
		if err == nil {
			return
		}
		c.t.Log(err)
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatal("no step of membership was made")
}

func (c *cluster) members() Members {
	c.t.Helper()
	leader, _ := c.leader(0)
	m, err := leader.r.Members(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// addNonVoting has the leader add a node that follows.
func (c *cluster) addNonVoting(id uint64) {
	c.t.Helper()
	c.step(func(r *Replica, version uint64) error {
		return errors.Join(r.CutLog(c.t.Context()), r.AddNonVoting(c.t.Context(), id, nodeHostID(id), version))
	})
}

// A replica joins, catches up, votes, is restarted, and takes the place of one that is removed.
func TestReplicaJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		for range 5 {
			if _, err := c.add(a, "x"); err != nil {
				t.Fatal(err)
			}
		}
		d := c.join(4)
		c.addNonVoting(4)
		await(t, func() bool { return d.m.get("x") == 5 })
		if m := c.members(); len(m.Voters) != 3 || len(m.NonVoting) != 1 {
			t.Errorf("members %+v", m)
		}
		if d.r.Serving() != 0 {
			t.Error("a replica without a vote leads")
		}
		err := a.r.HandOver(t.Context(), 4, func(context.Context) (uint64, error) { return d.r.Applied(), nil })
		if !errors.Is(err, ErrNotTaken) || a.r.Serving() == 0 {
			t.Errorf("hand over to a replica without a vote: %v", err)
		}
		c.step(func(r *Replica, version uint64) error {
			return r.Promote(t.Context(), 4, nodeHostID(4), version)
		})
		// The last entry of its log is not for the state.
		c.stop(d)
		c.start(d)
		await(t, d.r.Recovered)
		if a, _ = c.leader(0); a == d {
			t.Fatal("the restarted replica leads at once")
		}
		gone := c.other(a)
		if gone == d {
			gone = c.nodes[2]
		}
		c.step(func(r *Replica, version uint64) error { return r.RemoveMember(t.Context(), gone.id, version) })
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		// It votes, and can lead: with one more gone there is still a majority.
		await(t, func() bool { return d.m.get("x") == 6 })
		if err := a.r.Transfer(4); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return d.r.Serving() != 0 })
		if m := c.members(); len(m.Voters) != 3 || len(m.NonVoting) != 0 || m.Voters[gone.id] != "" {
			t.Errorf("members %+v", m)
		}
		// Whoever was removed can't come back under its id, and an old view changes nothing.
		old := c.members().Version - 1
		if err := d.r.RemoveMember(t.Context(), a.id, old); !errors.Is(err, ErrStepRefused) {
			t.Errorf("a step from an old view: %v", err)
		}
		if err := d.r.AddNonVoting(t.Context(), gone.id, nodeHostID(gone.id), c.members().Version); !errors.Is(err, ErrStepRefused) {
			t.Errorf("a removed replica was added again: %v", err)
		}
		// Nor can who was removed before it was added.
		c.step(func(r *Replica, version uint64) error { return r.RemoveMember(t.Context(), 5, version) })
		if err := d.r.AddNonVoting(t.Context(), 5, nodeHostID(5), c.members().Version); !errors.Is(err, ErrStepRefused) {
			t.Errorf("a replica was added that had been removed before: %v", err)
		}
		if v, err := c.add(d, "x"); err != nil || v != 7 {
			t.Errorf("add: %d, %v", v, err)
		}
	})
}

// What a shard's first replicas began with is not in the log: a replica that joins gets it with a
// snapshot, never by the log from its beginning.
func TestJoinerBeginsWithASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, name: t.Name(), net: &network{}}
		defer c.close()
		for i := uint64(1); i <= 3; i++ {
			nd := &testNode{id: i, raftFS: vfs.NewMem(), state: pvfs.NewMem()}
			c.nodes = append(c.nodes, nd)
			base(t, nd)
		}
		for _, nd := range c.nodes {
			c.start(nd)
		}
		a, term := c.leader(0)
		if v, err := c.add(a, "x"); err != nil || v != 101 {
			t.Fatalf("add: %d, %v", v, err)
		}
		d := c.join(4)
		c.addNonVoting(4)
		// The next leader has its whole log, and could send it from the beginning.
		b := c.other(a)
		await(t, func() bool { return b.r.Applied() >= a.r.Applied() })
		await(t, func() bool {
			if err := a.r.Transfer(b.id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return b.r.Serving() > term
		})
		time.Sleep(2 * time.Second)
		if v := d.m.get("x"); v != 0 && v != 101 {
			t.Errorf("the joined replica holds %d", v)
		}
		if err := b.r.CutLog(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return d.m.get("x") == 101 })
	})
}

// base gives a node the state that it begins with.
func base(tb testing.TB, nd *testNode) {
	tb.Helper()
	db, err := pebble.Open("state", StateOptions(nd.state, quietPebble{}))
	if err != nil {
		tb.Fatal(err)
	}
	m := newRegister(tb, db, Prefix(testShard, nd.id))
	if err := errors.Join(db.Set(m.cellKey("x"), binary.BigEndian.AppendUint64(nil, 100), pebble.NoSync), db.Flush(), db.Close()); err != nil {
		tb.Fatal(err)
	}
}

// Who does not lead makes no step of membership.
func TestStepsAreTheLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		if err := c.other(a).r.RemoveMember(context.Background(), a.id, 0); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower removes: %v", err)
		}
	})
}

// cutPower stops a node, which loses what it has not synced.
func (c *cluster) cutPower(nd *testNode) {
	state := nd.state.(*pvfs.MemFS).CrashClone(pvfs.CrashCloneCfg{})
	nd.raftFS.SetIgnoreSyncs(true)
	c.stop(nd)
	nd.raftFS.ResetToSyncedState()
	nd.raftFS.SetIgnoreSyncs(false)
	nd.state = state
}

// Who is left of two when the other has been removed, and is gone for ever, knows that it is alone after a power cut, too.
func TestRemovalOutlivesAPowerCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, name: t.Name(), net: &network{}}
		defer c.close()
		for i := uint64(1); i <= 2; i++ {
			c.nodes = append(c.nodes, &testNode{id: i, raftFS: vfs.NewStrictMem(), state: pvfs.NewCrashableMem()})
		}
		for _, nd := range c.nodes {
			c.start(nd)
		}
		a, _ := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		gone := c.other(a)
		c.step(func(r *Replica, version uint64) error { return r.RemoveMember(t.Context(), gone.id, version) })
		if m := c.members(); len(m.Voters) != 1 {
			t.Fatalf("members %+v", m)
		}
		c.stop(gone)
		c.cutPower(a)
		c.start(a)
		await(t, func() bool { return a.r.Serving() != 0 })
		if v, err := c.add(a, "x"); err != nil || v != 2 {
			t.Errorf("add: %d, %v", v, err)
		}
	})
}
