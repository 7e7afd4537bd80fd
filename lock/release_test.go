package lock

import (
	"errors"
	"testing"
	"time"
)

// A release is one write: no proof is asked for before it.
func TestReleaseIsOneWrite(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(1)
		first, next := e.granted(e.acquire(&Request{Name: "l", Client: "a", Session: 1})), e.acquire(ask("b"))
		e.waits(next)
		time.Sleep(time.Second) // what was asked ahead is old
		txns, reads, proofs := e.txns.Load(), e.reads.Load(), e.proofs.Load()
		e.release(first)
		if txns, reads := e.txns.Load()-txns, e.reads.Load()-reads; txns != 1 || reads != 0 {
			t.Errorf("%d transactions and %d reads", txns, reads)
		}
		e.release(e.granted(next))
		if n := e.proofs.Load() - proofs; n != 1 {
			t.Errorf("%d proofs, want that of the next holder", n)
		}
		e.revoke(1)
		e.empty()
	})
}

// What the node knows of a place that is released may be old, or no more: the newest counts.
func TestReleaseByAStaleNode(t *testing.T) {
	runBoth(t, func(e *env) {
		first := e.granted(e.acquire(&Request{Name: "l", Client: "a", ID: "1", TTL: ask("a").TTL}))
		old, err := e.router.Peek(e.ctx(), byToken("l", first.Token), 0)
		check(t, err)
		again := e.granted(e.acquire(&Request{Name: "l", Client: "a", ID: "2", TTL: ask("a").TTL}))
		if again.Holds != 2 || again.Token != first.Token {
			t.Fatalf("acquired again: %+v", again)
		}
		// The last acquire is the second one, of which the node does not know.
		e.stale = old
		check(t, e.Release(e.ctx(), "l", "a", first.Token, ""))
		e.stale = nil
		third := e.granted(e.acquire(&Request{Name: "l", Client: "a", ID: "1", TTL: ask("a").TTL}))
		if third.Holds != 1 || third.Token != first.Token {
			t.Errorf("the first acquire, made again after the second was released: %+v", third)
		}
		e.release(third)
		// Another has it by now.
		other := e.granted(e.acquire(ask("b")))
		e.stale = old
		check(t, e.Release(e.ctx(), "l", "a", first.Token, ""))
		if err := e.Release(e.ctx(), "l", "a", other.Token, ""); !errors.Is(err, ErrNotHolder) {
			t.Errorf("released another's lock: %v", err)
		}
		e.stale = nil
		if keys := e.keys("l"); len(keys) != 1 || keys[0] != other.Key {
			t.Errorf("there are %q, want %q", keys, other.Key)
		}
		e.release(other)
		e.empty()
	})
}
