package raft

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// A mark is passed where something has applied that was proposed after it, on any replica, and
// not by what was under way.
func TestMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		settled := stall(t, c, a)
		m, ok := a.r.Mark(term)
		if _, other := a.r.Mark(term + 1); !ok || other {
			t.Fatalf("marks of the term served: %v, of another: %v", ok, other)
		}
		c.net.heal()
		for range maxFlight {
			if err := <-settled; err != nil {
				t.Fatal(err)
			}
		}
		for _, nd := range c.nodes {
			await(t, func() bool { return nd.r.Applied() == a.r.Applied() })
			if nd.r.Passed(m) {
				t.Errorf("node %d: passed by what was proposed before", nd.id)
			}
		}
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		for _, nd := range c.nodes {
			await(t, func() bool { return nd.r.Passed(m) })
		}
	})
}

// A leader that is deposed and does not know takes a mark. Its successor acknowledges more commands than the
// old leader has proposed, so that a replica which has applied just the first of them has batches with higher
// numbers, and lacks what was acknowledged before the mark.
func TestMarkOfADeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		c.net.isolate(c.addr(a.id))
		hear := deafen(a)
		b, later := c.leader(term)
		for range 20 {
			if _, err := c.add(b, "x"); err != nil {
				t.Fatal(err)
			}
		}
		m, ok := a.r.Mark(term)
		if !ok {
			t.Fatal("the old leader has heard of the new one: the run shows nothing")
		}
		// What it proposes now is never committed.
		lost := make(chan error, 1)
		go func() {
			_, err := a.r.Propose(context.Background(), kindAdd, []byte("x"))
			lost <- err
		}()
		synctest.Wait()
		if a.r.Passed(m) {
			t.Error("passed by what nobody has but the old leader")
		}
		hear()
		c.net.heal()
		if err := <-lost; !errors.Is(err, ErrNotApplied) && !errors.Is(err, ErrNotLeader) {
			t.Errorf("a command of a deposed leader: %v", err)
		}
		for _, nd := range c.nodes {
			await(t, func() bool { return nd.r.Applied() >= b.r.Applied() })
			if nd.r.Passed(m) {
				t.Errorf("node %d: a mark of term %d was passed in term %d", nd.id, term, later)
			}
		}
	})
}
