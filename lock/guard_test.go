package lock

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// delayed is a request for a lock that is kept back for a time after its holder was lost.
func delayed(client string) *Request {
	r := ask(client)
	r.Delay = 20 * time.Second
	return r
}

// Nobody gets the lock for the delay after its holder's lease has ended, users of etcd's calls
// included, nor the holder itself.
func TestLockDelay(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x9)
		g := e.granted(e.acquire(delayed("a")))
		w := e.watch(0)
		time.Sleep(8 * time.Second)
		_, err := e.Renew(e.ctx(), "l", "a", g.Token, 0)
		check(t, err)
		behind, call := e.acquire(ask("b")), e.lock("l", 0x9)
		time.Sleep(12 * time.Second) // the lease has ended after ten
		back := e.acquire(ask("a"))
		for range 14 {
			time.Sleep(time.Second)
			e.waits(behind, back)
			e.wantWaiting(call)
		}
		q, err := e.Get(e.ctx(), "l")
		check(t, err)
		if len(q.Holders()) != 0 || len(q.Waiters()) != 3 || q.Delayed == nil {
			t.Errorf("%+v", q)
		}
		if valid, _, err := e.Validate(e.ctx(), "l", g.Token); valid || err != nil {
			t.Errorf("the token of who was lost: %v, %v", valid, err)
		}
		if _, err := e.Renew(e.ctx(), "l", "a", g.Token, 0); !errors.Is(err, ErrNotHolder) {
			t.Errorf("renewed: %v", err)
		}
		e.release(g) // changes nothing
		page, err := e.List(e.ctx(), &ListRequest{})
		check(t, err)
		if names := page.names(); !slices.Equal(names, []string{"l 0+3"}) {
			t.Errorf("%q", names)
		}
		e.waits(behind)
		time.Sleep(4 * time.Second)
		held := e.granted(behind)
		pause()
		e.release(held)
		key := e.wantHeld(call).Key
		pause()
		e.unlock(key)
		held = e.granted(back)
		pause()
		e.release(held)
		if told := w.heard(); !slices.Equal(told, []string{
			"queued a", "granted a", "queued b", "queued ", "expired a", "queued a",
			"granted b", "released b", "granted ", "released ", "granted a", "released a",
		}) {
			t.Errorf("%q", told)
		}
		w.cancel()
		<-w.done
		e.revoke(0x9)
		e.empty()
	})
}

// A release leaves no delay, whatever has become of the lease's time to live; nor does a
// waiter that gives up.
func TestNoDelayAfterRelease(t *testing.T) {
	runBoth(t, func(e *env) {
		g := e.granted(e.acquire(delayed("a")))
		again := e.granted(e.acquire(delayed("a")))
		if again.Token != g.Token {
			t.Errorf("%+v, again %+v", g, again)
		}
		gone := e.acquire(delayed("gone"))
		behind := e.acquire(ask("b"))
		_, err := e.Renew(e.ctx(), "l", "a", g.Token, 40*time.Second)
		check(t, err)
		time.Sleep(35 * time.Second)
		e.waits(gone, behind)
		gone.cancel()
		<-gone.done
		e.release(g)
		e.waits(behind)
		e.release(g)
		e.release(e.granted(behind))
		e.empty()
	})
}

// The delay counts from the end of the lease that the lock has had last.
func TestDelayAfterRenewal(t *testing.T) {
	run(t, whole, func(e *env) {
		g := e.granted(e.acquire(delayed("a")))
		_, err := e.Renew(e.ctx(), "l", "a", g.Token, 60*time.Second)
		check(t, err)
		r := ask("b")
		r.Wait = time.Hour
		behind := e.acquire(r)
		time.Sleep(79 * time.Second)
		e.waits(behind)
		time.Sleep(2 * time.Second)
		e.release(e.granted(behind))
		e.empty()
	})
}
