package lock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A release is one write: no proof is asked for before it, whether the node has the grant in mind or not.
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
		last := e.granted(next)
		e.Service.granted.places = nil
		e.release(last)
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
		e.Service.granted.places = nil
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

// What the node has in mind of its grants may be old, or another's: the newest counts.
func TestReleaseOfAGrantInMind(t *testing.T) {
	runBoth(t, func(e *env) {
		first := e.granted(e.acquire(&Request{Name: "l", Client: "a", ID: "1", TTL: ask("a").TTL}))
		kept := *e.Service.granted.places[first.Token]
		kept.says.Calls = slices.Clone(kept.says.Calls)
		again := e.granted(e.acquire(&Request{Name: "l", Client: "a", ID: "2", TTL: ask("a").TTL}))
		e.Service.granted.keep(&kept) // as if another node had been asked for the second
		check(t, e.Release(e.ctx(), "l", "a", first.Token, "2"))
		if q, err := e.Get(e.ctx(), "l"); err != nil || len(q.Places) != 1 || len(q.Places[0].Calls) != 1 || q.Places[0].Calls[0].ID != "1" {
			t.Errorf("after the release of the second: %+v, %v", q, err)
		}
		for _, other := range []struct{ name, client string }{{"l", "b"}, {"m", "a"}} {
			e.Service.granted.keep(&kept)
			if err := e.Release(e.ctx(), other.name, other.client, first.Token, ""); err != nil && !errors.Is(err, ErrNotHolder) {
				t.Error(err)
			}
		}
		if keys := e.keys("l"); len(keys) != 1 || keys[0] != again.Key {
			t.Errorf("there are %q, want %q", keys, again.Key)
		}
		e.release(again)
		e.empty()
	})
}

// Grants of which there are too many, or that are large, are not kept in mind.
func TestGrantsInMindAreBounded(t *testing.T) {
	var g granted
	for token := range int64(3 * maxKept) {
		p := &known{kv: &mvccpb.KeyValue{Key: []byte("l/1"), CreateRevision: token + 1}}
		if token%2 == 0 {
			p.says.Metadata = "m"
		}
		g.keep(p)
	}
	if len(g.places) != maxKept || g.take("l/", "", 3*maxKept) == nil || g.take("l/", "", 3*maxKept) != nil || g.take("l/", "", 3*maxKept-1) != nil {
		t.Errorf("%d places", len(g.places))
	}
}
