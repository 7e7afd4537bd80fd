package raft

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// stall cuts the leader off and lets two commands fill what may be under way.
func stall(t *testing.T, c *cluster, nd *testNode) (settled chan error) {
	t.Helper()
	c.net.isolate(c.addr(nd.id))
	settled = make(chan error, maxFlight)
	for i := range maxFlight {
		go func() {
			_, err := nd.r.Propose(t.Context(), kindAdd, fmt.Appendf(nil, "stalled%d", i))
			settled <- err
		}()
		synctest.Wait()
	}
	nd.r.mu.Lock()
	defer nd.r.mu.Unlock()
	if len(nd.r.flight) != maxFlight || len(nd.r.queue) != 0 {
		t.Fatalf("%d batches under way and %d calls in the queue", len(nd.r.flight), len(nd.r.queue))
	}
	return settled
}

// A batch goes beside another one if it is large, or if the other is not about to apply.
func TestSecondBatch(t *testing.T) {
	for name, of := range map[string]struct {
		took  time.Duration
		calls int
		want  int
	}{
		"about to apply":                 {time.Millisecond, manyCommands - 1, 1},
		"large":                          {time.Millisecond, manyCommands, 2},
		"batches take long":              {10 * time.Millisecond, 1, 2},
		"nobody knows how long it takes": {0, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3)
				defer c.close()
				a, _ := c.leader(0)
				c.net.isolate(c.addr(a.id))
				a.r.mu.Lock()
				a.r.took = of.took
				a.r.mu.Unlock()
				settled := make(chan error, 1+of.calls)
				for range cap(settled) {
					err := a.r.SubmitLater(Proposal{Kind: kindAdd, Payload: []byte("x")}, nil, func(_ any, err error) { settled <- err })
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				a.r.mu.Lock()
				got := len(a.r.flight)
				a.r.mu.Unlock()
				if got != of.want {
					t.Errorf("%d batches under way, want %d", got, of.want)
				}
				c.net.heal()
				for range cap(settled) {
					if err := <-settled; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A call whose context ends while it waits is never proposed.
func TestAbandonedCallsAreNotProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		settled := stall(t, c, a)
		ctx, cancel := context.WithCancel(t.Context())
		abandoned := make(chan error, 10)
		for range cap(abandoned) {
			go func() {
				_, err := a.r.Propose(ctx, kindAdd, []byte("abandoned"))
				abandoned <- err
			}()
		}
		kept := make(chan error, 1)
		go func() {
			_, err := a.r.Propose(t.Context(), kindAdd, []byte("kept"))
			kept <- err
		}()
		synctest.Wait()
		cancel()
		for range cap(abandoned) {
			if err := <-abandoned; !errors.Is(err, context.Canceled) {
				t.Errorf("abandoned call: %v", err)
			}
		}
		c.net.heal()
		for range maxFlight {
			if err := <-settled; err != nil {
				t.Errorf("stalled call: %v", err)
			}
		}
		if err := <-kept; err != nil {
			t.Errorf("kept call: %v", err)
		}
		if n := a.m.get("abandoned"); n != 0 || a.m.get("kept") != 1 {
			t.Errorf("%d abandoned calls were applied, %d kept ones", n, a.m.get("kept"))
		}
	})
}

// What waits while two batches are under way goes together; beyond the bound
// calls are refused, and nothing of them is applied.
func TestQueueIsBoundedAndBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		settled := stall(t, c, a)
		outcomes := make(chan error, maxQueue+100)
		for range cap(outcomes) {
			err := a.r.SubmitLater(Proposal{Kind: kindAdd}, func() ([]byte, bool) { return []byte("x"), true }, func(_ any, err error) { outcomes <- err })
			if err != nil {
				outcomes <- err
			}
		}
		index := a.r.Applied()
		c.net.heal()
		refused := 0
		for range cap(outcomes) {
			switch err := <-outcomes; {
			case errors.Is(err, ErrTooManyRequests):
				refused++
			case err != nil:
				t.Fatal(err)
			}
		}
		for range maxFlight {
			if err := <-settled; err != nil {
				t.Error(err)
			}
		}
		if refused != 100 || a.m.get("x") != maxQueue {
			t.Errorf("%d refused, %d applied", refused, a.m.get("x"))
		}
		if entries := a.r.Applied() - index; entries > 2+maxFlight {
			t.Errorf("%d entries for %d commands that waited", entries, maxQueue)
		}
	})
}

// Whoever hears that a command has applied finds its entry among those that have: other
// nodes are told to wait for that index, and must hold the command then.
func TestOutcomeIsToldBehindItsIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		before := a.r.Applied()
		told := make(chan uint64, 1)
		err := a.r.SubmitLater(Proposal{Kind: kindAdd}, func() ([]byte, bool) { return []byte("x"), true },
			func(any, error) { told <- a.r.Applied() })
		if err != nil {
			t.Fatal(err)
		}
		if index := <-told; index <= before {
			t.Errorf("a command has applied, and the state is at entry %d as before it", index)
		}
	})
}

// Calls of a replica that does not lead, or no longer does, are refused with
// certainty.
func TestFollowerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		f := c.other(a)
		if _, err := c.add(f, "x"); !errors.Is(err, ErrNotLeader) {
			t.Errorf("propose at a follower: %v", err)
		}
		if err := f.r.Confirm(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("confirm at a follower: %v", err)
		}
		settled := stall(t, c, a)
		queued := make(chan error, 1)
		go func() {
			_, err := a.r.Propose(t.Context(), kindAdd, []byte("queued"))
			queued <- err
		}()
		if err := <-queued; !errors.Is(err, ErrNotLeader) {
			t.Errorf("queued call of a deposed leader: %v", err)
		}
		// Without a successor it could be elected again, and its batches would apply.
		c.leader(term)
		c.net.heal()
		for range maxFlight {
			// The deposed leader's batches were never replicated: the successor's
			// begin entry settles them.
			if err := <-settled; !errors.Is(err, ErrNotApplied) {
				t.Errorf("call under way at a deposed leader: %v", err)
			}
		}
	})
}

func TestClosedReplicaRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a, _ := c.leader(0)
		c.close()
		if _, err := c.add(a, "x"); !errors.Is(err, ErrStopped) {
			t.Errorf("propose: %v", err)
		}
		if err := a.r.Confirm(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("confirm: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		caller := Caller[*Replica]{Replica: a.r, Here: a.r}
		err := caller.Again(ctx, func(ctx context.Context, r *Replica) error { return r.Confirm(ctx) })
		if !errors.Is(err, ErrStopped) {
			t.Errorf("at leader: %v", err)
		}
	})
}
