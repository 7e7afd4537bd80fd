package raft

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A question proves a leader by what its node has voted in, and no leader that has been deposed before it was sent.
func TestQuestionsProveLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		b := c.other(a)
		before := b.r.Voted()
		if before != (Voted{b.id, term}) {
			t.Fatalf("a follower in term %d says %+v", term, before)
		}
		for _, tc := range []struct {
			name  string
			voted Voted
			want  bool
		}{
			{"a follower", before, true},
			{"one that has not heard of the term", Voted{b.id, term - 1}, true},
			{"one that has voted in a later term", Voted{b.id, term + 1}, false},
			{"the leader itself", a.r.Voted(), false},
			{"nobody", Voted{}, false},
			{"no member", Voted{9, term}, false},
		} {
			if got := a.r.provedBy(tc.voted); got != tc.want {
				t.Errorf("asked by %s: proved %t", tc.name, got)
			}
		}
		if b.r.provedBy(a.r.Voted()) {
			t.Error("a follower is proved to lead")
		}
		c.net.isolate(c.addr(a.id))
		hear := deafen(a)
		defer hear()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.r.ConfirmFor(ctx, before); err != nil {
			t.Errorf("asked before it was deposed: %v", err)
		}
		successor, later := c.leader(term)
		for _, nd := range c.nodes {
			if nd == a {
				continue
			}
			await(t, func() bool { return nd.r.Voted().Term >= later })
			if a.r.provedBy(nd.r.Voted()) {
				t.Errorf("node %d, which has another leader, proves the deposed one", nd.id)
			}
			if nd != successor && !successor.r.provedBy(nd.r.Voted()) {
				t.Errorf("node %d does not prove its leader", nd.id)
			}
		}
		if a.r.Serving() != term {
			t.Fatal("the deposed leader knows: the run shows nothing")
		}
		// Its Raft hears of the later term, and nobody tells it of that.
		c.net.heal()
		await(t, func() bool { return a.r.Voted().Term >= later })
		if a.r.Serving() != term || a.r.provedBy(before) {
			t.Error("a leader that has voted for another is proved")
		}
	})
}

// Of five voters two are no majority.
func TestQuestionsProveNoLeaderOfFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5)
		defer c.close()
		a, _ := c.leader(0)
		if b := c.other(a); a.r.provedBy(b.r.Voted()) {
			t.Error("proved by two of five")
		}
	})
}
