package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// acquiring is a call of Acquire that is under way.
type acquiring struct {
	cancel context.CancelFunc
	done   chan struct{}
	grant  *Grant
	all    []*Grant
	err    error
}

// ask is a request of a client for the lock "l", which waits for a minute.
func ask(client string) *Request {
	return &Request{Name: "l", Client: client, TTL: 10 * time.Second, Wait: time.Minute}
}

// acquire calls Acquire, and returns when it is answered or waits.
func (e *env) acquire(r *Request) *acquiring { return e.acquireAt(e.Service, r) }

// acquireAt is acquire of another service.
func (e *env) acquireAt(s *Service, r *Request) *acquiring {
	ctx, cancel := context.WithCancel(e.ctx())
	a := &acquiring{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.grant, a.err = s.Acquire(ctx, r)
	}()
	inQueue()
	return a
}

func (a *acquiring) answered() bool {
	pause()
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (e *env) granted(a *acquiring) *Grant {
	e.t.Helper()
	if !a.answered() {
		e.t.Fatal("not granted")
	}
	check(e.t, a.err)
	return a.grant
}

func (e *env) waits(as ...*acquiring) {
	e.t.Helper()
	for _, a := range as {
		if a.answered() {
			e.t.Fatalf("does not wait: %+v, %v", a.grant, a.err)
		}
	}
}

func (e *env) refused(a *acquiring, want error) {
	e.t.Helper()
	if !a.answered() {
		e.t.Fatalf("still waits, want %v", want)
	}
	if !errors.Is(a.err, want) {
		e.t.Fatalf("got %+v, %v, want %v", a.grant, a.err, want)
	}
}

func (e *env) release(g *Grant) {
	e.t.Helper()
	check(e.t, e.Release(e.ctx(), g.Name, g.Client, g.Token, ""))
}

// leases returns how many leases there are.
func (e *env) leases() int {
	e.t.Helper()
	resp, err := e.router.LeaseLeases(e.ctx(), &pb.LeaseLeasesRequest{})
	check(e.t, err)
	return len(resp.Leases)
}

// empty fails the test if a key or a lease is left.
func (e *env) empty() {
	e.t.Helper()
	synctest.Wait()
	if left := e.keys("l"); len(left) > 0 {
		e.t.Errorf("keys are left: %q", left)
	}
	if n := e.leases(); n > 0 {
		e.t.Errorf("%d leases are left", n)
	}
}

// Clients of Acquire and users of etcd's calls stand in one line.
func TestAcquireInOneLine(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x9)
		first := e.granted(e.acquire(ask("a")))
		if first.Holds != 1 || first.TTL != 10*time.Second || first.Token == 0 || first.Revision < first.Token {
			t.Errorf("%+v", first)
		}
		second := e.lock("l", 0x9)
		third := e.acquire(ask("b"))
		e.wantWaiting(second)
		e.waits(third)
		e.release(first)
		held := e.wantHeld(second)
		e.waits(third)
		e.unlock(held.Key)
		last := e.granted(third)
		if held.Token <= first.Token || last.Token <= held.Token || last.Revision <= last.Token {
			t.Errorf("tokens %d, %d, %d at %d", first.Token, held.Token, last.Token, last.Revision)
		}
		e.release(last)
		e.release(last) // again
		e.revoke(0x9)
		e.empty()
	})
}

// The lease of who waits is kept, and whole when the lock is given; then it is the client's
// to renew.
func TestLeaseWhileWaiting(t *testing.T) {
	run(t, whole, func(e *env) {
		first := e.granted(e.acquire(&Request{Name: "l", Client: "a", TTL: 40 * time.Second}))
		second := e.acquire(ask("b"))
		time.Sleep(35 * time.Second)
		e.waits(second)
		e.release(first)
		g := e.granted(second)
		if left := until(g.Expires); left > 10*time.Second || left < 9*time.Second {
			t.Errorf("%v are left of the lease", left)
		}
		third := e.acquire(ask("c"))
		time.Sleep(5 * time.Second)
		if _, err := e.Renew(e.ctx(), "l", "b", g.Token, 0); err != nil {
			t.Error(err)
		}
		time.Sleep(9 * time.Second)
		e.waits(third)
		time.Sleep(3 * time.Second)
		next := e.granted(third)
		if _, err := e.Renew(e.ctx(), "l", "b", g.Token, 0); !errors.Is(err, ErrNotHolder) {
			t.Errorf("renewed what is over: %v", err)
		}
		e.release(g) // too late, and no harm
		if valid, holders, err := e.Validate(e.ctx(), "l", next.Token); !valid || err != nil || len(holders) != 1 || holders[0].Client != "c" {
			t.Errorf("%v, %+v, %v", valid, holders, err)
		}
		if valid, _, _ := e.Validate(e.ctx(), "l", g.Token); valid {
			t.Error("the old token is valid")
		}
		e.release(next)
		e.empty()
	})
}

// A renewal may ask for another time to live, and is guarded by client and token.
func TestRenew(t *testing.T) {
	runBoth(t, func(e *env) {
		g := e.granted(e.acquire(ask("a")))
		for _, ttl := range []time.Duration{60 * time.Second, 1500 * time.Millisecond, 20 * time.Second} {
			r, err := e.Renew(e.ctx(), "l", "a", g.Token, ttl)
			check(t, err)
			if r.TTL < ttl || r.TTL > ttl+time.Second {
				t.Errorf("asked for %v: %+v", ttl, r)
			}
			if n := e.leases(); n != 1 {
				t.Errorf("%d leases", n)
			}
		}
		next := e.acquire(ask("b"))
		time.Sleep(19 * time.Second)
		e.waits(next)
		for _, wrong := range []struct {
			client string
			token  int64
		}{{"b", g.Token}, {"a", g.Token - 1}, {"a", g.Token + 1}, {"a", 1 << 40}} {
			if _, err := e.Renew(e.ctx(), "l", wrong.client, wrong.token, 0); !errors.Is(err, ErrNotHolder) {
				t.Errorf("renewed by %+v: %v", wrong, err)
			}
		}
		if err := e.Release(e.ctx(), "l", "b", g.Token, ""); !errors.Is(err, ErrNotHolder) {
			t.Errorf("released by another: %v", err)
		}
		if err := e.Release(e.ctx(), "l", "a", 1<<40, ""); !errors.Is(err, ErrNotHolder) {
			t.Errorf("released by a token that was never given: %v", err)
		}
		e.waits(next)
		e.release(g)
		e.release(e.granted(next))
		e.empty()
	})
}

// A request that is made again is for the same hold, one that is another for one more: the
// lock goes with the last.
func TestRepeatsAndReentrancy(t *testing.T) {
	runBoth(t, func(e *env) {
		r := ask("a")
		r.ID = "1"
		first := e.granted(e.acquire(r))
		again := e.granted(e.acquire(r))
		if again.Token != first.Token || again.Holds != 1 {
			t.Errorf("%+v, again %+v", first, again)
		}
		r2 := ask("a")
		r2.ID = "2"
		more := e.granted(e.acquire(r2))
		if more.Token != first.Token || more.Holds != 2 {
			t.Errorf("%+v, then %+v", first, more)
		}
		next := e.acquire(ask("b"))
		for range 2 { // the same one: repeated
			check(t, e.Release(e.ctx(), "l", "a", first.Token, "2"))
			e.waits(next)
		}
		e.release(first)
		e.release(e.granted(next))
		e.empty()
	})
}

// A request that is made again while the first attempt waits takes its place over: what the
// first gives up is not its own any more.
func TestRepeatWhileWaiting(t *testing.T) {
	runBoth(t, func(e *env) {
		held := e.granted(e.acquire(ask("a")))
		r := ask("b")
		r.ID = "1"
		attempt := e.acquire(r)
		behind := e.acquire(ask("c"))
		again := e.acquire(r)
		attempt.cancel()
		e.refused(attempt, context.Canceled)
		e.waits(again, behind)
		e.release(held)
		g := e.granted(again)
		e.waits(behind)
		e.release(g)
		e.release(e.granted(behind))

		// Two requests of one client that wait have one place; it lasts until both give up.
		held = e.granted(e.acquire(ask("a")))
		one, two := e.acquire(ask("b")), e.acquire(ask("b"))
		if n := len(e.keys("l")); n != 2 {
			t.Errorf("%d places", n)
		}
		one.cancel()
		e.refused(one, context.Canceled)
		e.waits(two)
		two.cancel()
		e.refused(two, context.Canceled)
		e.release(held)
		e.empty()
	})
}

// Who can't have the lock in time hears who has it and how far it came, and leaves.
func TestNotGranted(t *testing.T) {
	runBoth(t, func(e *env) {
		held := e.granted(e.acquire(ask("a")))
		behind := e.acquire(ask("b"))
		for _, wait := range []time.Duration{0, time.Second} {
			r := ask("c")
			r.Wait = wait
			began := time.Now()
			a := e.acquire(r)
			time.Sleep(wait)
			var not *NotGrantedError
			if !a.answered() || !errors.As(a.err, &not) {
				t.Fatalf("%+v, %v", a.grant, a.err)
			}
			if took := time.Since(began); took > wait+500*time.Millisecond {
				t.Errorf("took %v", took)
			}
			holders := not.Queue.Holders()
			if not.Position != 2 || len(holders) != 1 || holders[0].Client != "a" || holders[0].Token != held.Token {
				t.Errorf("%+v", not)
			}
			if n := len(e.keys("l")); n != 2 {
				t.Errorf("%d keys", n)
			}
		}
		q, err := e.Get(e.ctx(), "l")
		check(t, err)
		if w := q.Waiters(); len(w) != 1 || w[0].Client != "b" || w[0].Position != 1 {
			t.Errorf("%+v", q)
		}
		if left, err := e.Remaining(e.ctx(), held.Place); err != nil || left <= 0 || left > 10*time.Second {
			t.Errorf("%v, %v", left, err)
		}
		e.release(held)
		e.release(e.granted(behind))
		e.empty()
	})
}

// Who waits and loses its session hears of it at once and is never given the lock. A session
// has its locks until it is closed or over.
func TestSessions(t *testing.T) {
	runBoth(t, func(e *env) {
		one, err := e.OpenSession(e.ctx(), 10*time.Second)
		check(t, err)
		two, err := e.OpenSession(e.ctx(), 10*time.Second)
		check(t, err)
		in := func(s *Session, client string) *Request {
			r := ask(client)
			r.Session = s.ID
			return r
		}
		held := e.granted(e.acquire(in(one, "a")))
		if held.Lease != one.ID || held.Key != fmt.Sprintf("l/%x", one.ID) {
			t.Errorf("%+v", held)
		}
		other := in(one, "a")
		other.Name = "m"
		e.granted(e.acquire(other))
		lost, last := e.acquire(in(two, "b")), e.acquire(ask("c"))
		e.refused(e.acquire(in(two, "x")), ErrOtherClient)
		check(t, e.CloseSession(e.ctx(), two.ID))
		e.refused(lost, ErrLost)
		if _, err := e.RenewSession(e.ctx(), two.ID); !errors.Is(err, ErrNoSession) {
			t.Errorf("a closed session was renewed: %v", err)
		}
		time.Sleep(8 * time.Second)
		_, err = e.RenewSession(e.ctx(), one.ID)
		check(t, err)
		time.Sleep(8 * time.Second)
		e.waits(last)
		time.Sleep(4 * time.Second)
		e.release(e.granted(last))
		if n := len(e.keys("m")); n != 0 {
			t.Errorf("%d keys of a session that is over", n)
		}
		e.empty()
	})
}

// Shared holders are together, and a writer that waits stops those behind it.
func TestShared(t *testing.T) {
	runBoth(t, func(e *env) {
		shared := func(client string) *Request {
			r := ask(client)
			r.Mode = Shared
			return r
		}
		a, b := e.granted(e.acquire(shared("a"))), e.granted(e.acquire(shared("b")))
		writer := e.acquire(ask("w"))
		c, d := e.acquire(shared("c")), e.acquire(shared("d"))
		now := shared("now")
		now.Wait = 0
		var not *NotGrantedError
		if n := e.acquire(now); !n.answered() || !errors.As(n.err, &not) || len(not.Queue.Holders()) != 2 {
			t.Errorf("past a writer that waits: %+v, %v", n.grant, n.err)
		}
		e.waits(writer, c, d)
		e.release(b)
		e.waits(writer, c, d)
		e.release(a)
		w := e.granted(writer)
		e.waits(c, d)
		e.refused(e.acquire(shared("w")), ErrOtherMode)
		e.release(w)
		e.granted(c)
		e.granted(d)
		if again := e.granted(e.acquire(shared("e"))); again.Token <= d.grant.Token {
			t.Errorf("%+v", again)
		}
		q, err := e.Get(e.ctx(), "l")
		check(t, err)
		if len(q.Holders()) != 3 || len(q.Waiters()) != 0 {
			t.Errorf("%+v", q)
		}
	})
}

// A user of etcd's recipe or call who asks behind shared holders waits for all of them, and
// nobody gets in behind it.
func TestSharedAndCallsOfEtcd(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x9)
		shared := func(client string) *Request {
			r := ask(client)
			r.Mode = Shared
			return r
		}
		a := e.granted(e.acquire(shared("a")))
		b := e.granted(e.acquire(shared("b")))
		l := e.lock("l", 0x9)
		c := e.acquire(shared("c"))
		e.release(a)
		e.wantWaiting(l)
		e.waits(c)
		e.release(b)
		held := e.wantHeld(l)
		e.waits(c)
		e.unlock(held.Key)
		e.granted(c)
		// By a session that has the lock with others nobody has it alone.
		s, err := e.OpenSession(e.ctx(), time.Minute)
		check(t, err)
		r := shared("d")
		r.Session = s.ID
		e.granted(e.acquire(r))
		if _, err := e.Lock(e.ctx(), []byte("l"), s.ID); !errors.Is(err, ErrOtherMode) {
			t.Errorf("locked: %v", err)
		}
		if _, err := e.Campaign(e.ctx(), []byte("l"), s.ID, []byte("me")); !errors.Is(err, ErrOtherMode) {
			t.Errorf("campaigned: %v", err)
		}
	})
}

// Candidates may proclaim what they like: one that looks like a shared place is none.
func TestCandidateThatLooksShared(t *testing.T) {
	run(t, whole, func(e *env) {
		e.grant(0x1, 0x9)
		says := Entry{Mode: Shared, Calls: []queue.Call{{ID: "1"}}}
		_, err := e.Campaign(e.ctx(), []byte("l"), 0x1, says.Value())
		check(t, err)
		ctx, cancel := context.WithTimeout(e.ctx(), time.Second)
		defer cancel()
		if c, err := e.Campaign(ctx, []byte("l"), 0x9, says.Value()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("two leaders: %+v, %v", c, err)
		}
	})
}

// A semaphore gives its permits in the order of asking, and never more than it has.
func TestSemaphore(t *testing.T) {
	runBoth(t, func(e *env) {
		permits := func(client string, n, of int) *Request {
			r := ask(client)
			r.Permits, r.Of = n, of
			return r
		}
		a, b := e.granted(e.acquire(permits("a", 2, 5))), e.granted(e.acquire(permits("b", 2, 5)))
		c, d := e.acquire(permits("c", 2, 5)), e.acquire(permits("d", 1, 5))
		other := e.acquire(permits("other", 1, 6))
		e.waits(c, d, other)
		e.release(a)
		gc, gd := e.granted(c), e.granted(d)
		e.waits(other)
		e.release(b)
		e.release(gc)
		e.waits(other)
		e.release(gd)
		e.release(e.granted(other))
		e.empty()
	})
}

func TestForceRelease(t *testing.T) {
	run(t, whole, func(e *env) {
		r := ask("a")
		held := e.granted(e.acquire(r))
		e.granted(e.acquire(ask("a")))
		next := e.acquire(ask("b"))
		w := e.watch(0)
		check(t, e.ForceRelease(e.ctx(), "l", held.Token, "stuck"))
		g := e.granted(next)
		if told := w.heard(); !slices.Equal(told, []string{"queued a", "queued b", "granted a", "released a stuck", "granted b"}) {
			t.Errorf("%q", told)
		}
		w.cancel()
		<-w.done
		if err := e.ForceRelease(e.ctx(), "l", held.Token, "stuck"); !errors.Is(err, ErrNotHolder) {
			t.Errorf("again: %v", err)
		}
		if _, err := e.Renew(e.ctx(), "l", "a", held.Token, 0); !errors.Is(err, ErrNotHolder) {
			t.Errorf("renewed: %v", err)
		}
		e.release(g)
		e.empty()
	})
}

func TestBadRequests(t *testing.T) {
	run(t, whole, func(e *env) {
		long := string(make([]byte, MaxName+1))
		for field, change := range map[string]func(*Request){
			"lock_key":       func(r *Request) { r.Name = "" },
			"lock_key ":      func(r *Request) { r.Name = long },
			"client_id":      func(r *Request) { r.Client = long },
			"request_id":     func(r *Request) { r.ID = long },
			"session_id":     func(r *Request) { r.Session = -1 },
			"lease_time_ms":  func(r *Request) { r.TTL = 0 },
			"lease_time_ms ": func(r *Request) { r.TTL = MaxTTL + 1 },
			"block_time_ms":  func(r *Request) { r.Wait = -1 },
			"mode":           func(r *Request) { r.Mode = "odd" },
			"mode ":          func(r *Request) { r.Mode, r.Permits, r.Of = Shared, 1, 1 },
			"permits":        func(r *Request) { r.Permits = 1 },
			"permits ":       func(r *Request) { r.Permits, r.Of = 3, 2 },
			"of":             func(r *Request) { r.Of = -1 },
			"lock_delay_ms":  func(r *Request) { r.Delay = -1 },
			"lock_delay_ms ": func(r *Request) { r.Delay, r.Mode = 1, Shared },
			"metadata":       func(r *Request) { r.Metadata = string(make([]byte, MaxMetadata+1)) },
		} {
			r := ask("a")
			change(r)
			_, err := e.Acquire(e.ctx(), r)
			var wrong *FieldError
			if !errors.As(err, &wrong) || wrong.Field != trimmed(field) {
				t.Errorf("%s: %v", field, err)
			}
		}
		e.empty()
	})
}

// until returns the time to a moment.
func until(e Epoch) time.Duration {
	return time.Duration(int64(e)-time.Now().UnixMilli()) * time.Millisecond
}

func trimmed(field string) string {
	for field[len(field)-1] == ' ' {
		field = field[:len(field)-1]
	}
	return field
}

// Clients ask for all there is, give up, are lost and come back: who has the lock may have it
// beside who else has it.
func TestRandomModes(t *testing.T) {
	for _, m := range []string{"one shard", "a divided queue"} {
		t.Run(m, func(t *testing.T) {
			for seed := range uint64(6) {
				shards := whole
				if m != "one shard" {
					shards = split
				}
				run(t, shards, func(e *env) { randomModes(e, seed) })
			}
		})
	}
}

// holders are who is told that it has the lock.
type holders struct {
	mu  sync.Mutex
	all map[string]*Request
}

// enter notes a holder, and reports whether it may be one beside the others.
func (h *holders) enter(r *Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[r.Client] = r
	writers, shared, permits := 0, 0, 0
	for _, r := range h.all {
		switch {
		case r.Of > 0:
			permits += r.Permits
		case r.Mode == Shared:
			shared++
		default:
			writers++
		}
	}
	kinds := min(writers, 1) + min(shared, 1) + min(permits, 1)
	return kinds == 1 && writers <= 1 && permits <= 3
}

func (h *holders) leave(client string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, client)
}

func randomModes(e *env, seed uint64) {
	t := e.t
	other := New(e.config())
	defer other.Close()
	h := &holders{all: make(map[string]*Request)}
	var all sync.WaitGroup
	for c := range 10 {
		random := rand.New(rand.NewPCG(seed, uint64(c)))
		client := fmt.Sprint("client ", c)
		all.Go(func() {
			for range 12 {
				r := ask(client)
				r.Wait = time.Duration(random.IntN(300)) * time.Millisecond
				switch random.IntN(4) {
				case 0, 1:
					r.Mode = Shared
				case 2:
					r.Permits, r.Of = 1+random.IntN(2), 3
				}
				s := []*Service{e.Service, other}[random.IntN(2)]
				g, err := s.Acquire(e.ctx(), r)
				var not *NotGrantedError
				if err != nil {
					if !errors.As(err, &not) {
						t.Errorf("seed %d: %v", seed, err)
					}
					continue
				}
				if !h.enter(r) {
					t.Errorf("seed %d: %+v has the lock beside %v", seed, r, h.all)
				}
				time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
				h.leave(client)
				switch random.IntN(3) {
				case 0: // its client is lost
					_, err = e.router.LeaseRevoke(e.ctx(), &pb.LeaseRevokeRequest{ID: g.Lease})
				default:
					err = s.Release(e.ctx(), g.Name, client, g.Token, "")
				}
				check(t, err)
			}
		})
	}
	all.Wait()
	e.empty()
	if len(e.tracked)+len(other.tracked) > 0 {
		t.Errorf("seed %d: queues are followed for nobody", seed)
	}
}

// One client asks and releases from many places at once, by requests that it repeats: it has
// the lock as long as one of them does, and nobody else.
func TestRandomRepeats(t *testing.T) {
	for seed := range uint64(6) {
		run(t, whole, func(e *env) {
			other := New(e.config())
			defer other.Close()
			var mu sync.Mutex
			has := make(map[string]int)
			var callers sync.WaitGroup
			for c := range 9 {
				random := rand.New(rand.NewPCG(seed, uint64(c)))
				client := fmt.Sprint("client ", c%3)
				callers.Go(func() {
					for i := range 15 {
						r := ask(client)
						r.ID, r.Wait = fmt.Sprint(c, i), time.Hour
						ctx, cancel := context.WithTimeout(e.ctx(), time.Duration(random.IntN(100))*time.Millisecond)
						_, err := e.Acquire(ctx, r) // may be given up
						cancel()
						if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrLost) {
							t.Errorf("seed %d: %v", seed, err)
						}
						g, err := other.Acquire(e.ctx(), r)
						check(t, err)
						mu.Lock()
						has[client]++
						if len(has) > 1 {
							t.Errorf("seed %d: the lock is had by %v", seed, has)
						}
						mu.Unlock()
						time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
						mu.Lock()
						if has[client]--; has[client] == 0 {
							delete(has, client)
						}
						mu.Unlock()
						check(t, e.Release(e.ctx(), "l", client, g.Token, r.ID))
					}
				})
			}
			callers.Wait()
			e.empty()
		})
	}
}

// A renewal that meets another, which gives the place a lease of another time, is not answered
// for the lease that is gone.
func TestRenewMeetsRenew(t *testing.T) {
	run(t, whole, func(e *env) {
		g := e.granted(e.acquire(ask("a")))
		e.proving = func() {
			e.proving = nil
			_, err := e.Renew(e.ctx(), "l", "a", g.Token, 20*time.Second)
			check(t, err)
		}
		if r, err := e.Renew(e.ctx(), "l", "a", g.Token, 0); err != nil || r.TTL != 20*time.Second {
			t.Errorf("%+v, %v", r, err)
		}
		e.release(g)
		e.empty()
	})
}
