package lock

import (
	"fmt"
	"testing"
	"time"
)

// A lock that goes from hand to hand costs each one renewal ahead, and no proof.
func TestHandOffsAskedAhead(t *testing.T) {
	run(t, whole, func(e *env) {
		var all []*acquiring
		for i := range 10 {
			all = append(all, e.acquire(ask(fmt.Sprint("client ", i))))
		}
		time.Sleep(time.Second)
		e.release(e.granted(all[0]))
		e.release(e.granted(all[1])) // had asked long before
		e.waits(all[9])
		aheads, renewals, proofs := e.aheads.Load(), e.renewals.Load(), e.proofs.Load()
		for _, a := range all[2:] {
			began := time.Now()
			g := e.granted(a)
			if told := time.UnixMilli(int64(g.Expires)); told.After(began.Add(10*time.Second)) || told.Before(began.Add(10*time.Second-maxAhead)) {
				t.Errorf("granted at %v until %v", began, told)
			}
			e.release(g)
		}
		// The first two have asked before.
		if n := e.aheads.Load() - aheads; n != 6 || e.renewals.Load() > renewals || e.proofs.Load() > proofs {
			t.Errorf("%d asked ahead, %d renewals, %d proofs", n, e.renewals.Load()-renewals, e.proofs.Load()-proofs)
		}
		e.empty()
	})
}

// What was asked ahead is not used where it is old, or where nothing proves it: then the lease is renewed
// and the place proved when the turn has come.
func TestAskedAheadInVain(t *testing.T) {
	for name, prepare := range map[string]func(*env){
		"old":      func(*env) { time.Sleep(2 * maxAhead) },
		"unproved": func(e *env) { e.unproved = true },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, whole, func(e *env) {
				held := e.granted(e.acquire(ask("a")))
				next := e.acquire(ask("b"))
				e.waits(next)
				prepare(e)
				aheads, renewals, proofs := e.aheads.Load(), e.renewals.Load(), e.proofs.Load()
				began := time.Now()
				e.release(held)
				g := e.granted(next)
				if told := time.UnixMilli(int64(g.Expires)); told.Before(began.Add(10 * time.Second).Truncate(time.Millisecond)) {
					t.Errorf("released at %v, and granted until %v", began, told)
				}
				if aheads != 1 || e.aheads.Load() != 1 || e.renewals.Load() != renewals+1 || e.proofs.Load() != proofs+1 {
					t.Errorf("%d asked ahead, %d renewals, %d proofs", e.aheads.Load(), e.renewals.Load()-renewals, e.proofs.Load()-proofs)
				}
				e.release(g)
				e.empty()
			})
		})
	}
}

// A place that is taken away between the release before it and the grant is not granted.
func TestAskedAheadAndLost(t *testing.T) {
	run(t, whole, func(e *env) {
		e.grant(1)
		held := e.granted(e.acquire(ask("a")))
		next := e.acquire(&Request{Name: "l", Client: "b", Session: 1, Wait: time.Minute})
		e.waits(next)
		e.passing = func() { e.revoke(1) }
		e.release(held)
		e.refused(next, ErrLost)
		e.empty()
	})
}

// Without a lease whose home has the queue nothing is asked ahead, and the lock goes on all the same.
func TestNothingToAskAhead(t *testing.T) {
	run(t, split, func(e *env) {
		held, next := e.granted(e.acquire(ask("a"))), e.acquire(ask("b"))
		e.waits(next)
		e.release(held)
		e.release(e.granted(next))
		e.empty()
	})
}
