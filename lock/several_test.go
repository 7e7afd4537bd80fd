package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func (e *env) acquireAll(r *Request, names ...string) *acquiring {
	ctx, cancel := context.WithCancel(e.ctx())
	a := &acquiring{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		var grants []*Grant
		if grants, a.err = e.AcquireAll(ctx, names, r); a.err == nil {
			a.grant, a.all = grants[0], grants
		}
	}()
	return a
}

// Several locks are got together or not at all; those that are got first are kept while the
// call waits for the others.
func TestSeveralLocks(t *testing.T) {
	runBoth(t, func(e *env) {
		m := ask("a")
		m.Name = "m"
		m.TTL = time.Hour
		held := e.granted(e.acquire(m))
		r := ask("b")
		r.Wait = 30 * time.Second
		some := e.acquireAll(r, "n", "m", "l")
		e.waits(some)
		time.Sleep(25 * time.Second)
		e.waits(some)
		if n := len(e.keys("l")); n != 1 {
			t.Errorf("%d keys", n)
		}
		time.Sleep(5 * time.Second)
		var not *NotGrantedError
		if !some.answered() || !errors.As(some.err, &not) || not.Queue.Name != "m" {
			t.Fatalf("%+v, %v", some.grant, some.err)
		}
		if n := len(e.keys("l")) + len(e.keys("n")); n != 0 {
			t.Errorf("%d keys are left of what was not got", n)
		}
		some = e.acquireAll(r, "n", "m", "l")
		e.waits(some)
		time.Sleep(15 * time.Second)
		e.release(held)
		if !some.answered() || some.err != nil {
			t.Fatal(some.err)
		}
		for i, g := range some.all {
			if g.Name != string("lmn"[i]) || until(g.Expires) < 9*time.Second {
				t.Errorf("%+v", g)
			}
			e.release(g)
		}
		for _, names := range [][]string{nil, {"a", "b", "a"}, {""}, make([]string, MaxNames+1)} {
			var wrong *FieldError
			if _, err := e.AcquireAll(e.ctx(), names, ask("a")); !errors.As(err, &wrong) {
				t.Errorf("%q: %v", names, err)
			}
		}
		e.empty()
	})
}

// One that goes while another is waited for is not answered as had.
func TestSeveralLocksLost(t *testing.T) {
	run(t, whole, func(e *env) {
		m := ask("a")
		m.Name = "m"
		held := e.granted(e.acquire(m))
		some := e.acquireAll(ask("b"), "l", "m")
		e.waits(some)
		e.unlock(e.keys("l")[0])
		e.release(held)
		e.refused(some, ErrLost)
		e.empty()
	})
}

// Clients that take several locks at once in any order all get them in the end.
func TestSeveralLocksAreTakenInOneOrder(t *testing.T) {
	runBoth(t, func(e *env) {
		var clients sync.WaitGroup
		for c := range 8 {
			random := rand.New(rand.NewPCG(7, uint64(c)))
			clients.Go(func() {
				for range 10 {
					r := ask(fmt.Sprint("client ", c))
					r.Wait = time.Hour
					names := []string{"l", "l/9", "m", "n", "o"}
					random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
					grants, err := e.AcquireAll(e.ctx(), names[:1+random.IntN(4)], r)
					check(t, err)
					time.Sleep(10 * time.Millisecond)
					for _, g := range grants {
						check(t, e.Release(e.ctx(), g.Name, g.Client, g.Token, ""))
					}
				}
			})
		}
		clients.Wait()
		e.empty()
	})
}

// Who wants to know is told how many are before it, whenever that has changed.
func TestPositions(t *testing.T) {
	runBoth(t, func(e *env) {
		a := e.granted(e.acquire(ask("a")))
		b, c := e.acquire(ask("b")), e.acquire(ask("c"))
		var told []string
		r := ask("d")
		r.Moved = func(name string, p Position) { told = append(told, fmt.Sprint(name, p.Before)) }
		d := e.acquire(r)
		e.waits(b, c, d)
		after := e.acquire(ask("e"))
		time.Sleep(9 * time.Second) // renewals change nothing
		c.cancel()
		e.refused(c, context.Canceled)
		e.waits(d)
		e.release(a)
		e.waits(d, after)
		e.release(e.granted(b))
		e.release(e.granted(d))
		if want := []string{"l3", "l2", "l1"}; !slices.Equal(told, want) {
			t.Errorf("%q, want %q", told, want)
		}
		e.release(e.granted(after))
		e.empty()
	})
}
