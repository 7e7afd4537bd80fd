package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The order of asking is kept, tokens grow, and a session that asks again has the same place.
func TestTurns(t *testing.T) {
	runBoth(t, func(e *env) {
		t := e.t
		e.grant(0x1, 0x9, 0x2)
		first := e.wantHeld(e.lock("l", 0x1))
		if again := e.wantHeld(e.lock("l", 0x1)); again.Place != first.Place {
			t.Errorf("asked again: %+v, want %+v", again.Place, first.Place)
		}
		second := e.lock("l", 0x9)
		third := e.lock("l", 0x2)
		again := e.lock("l", 0x2)
		e.wantWaiting(second, third, again)
		e.unlock(first.Key)
		held := e.wantHeld(second)
		if held.Key != "l/9" || held.Token <= first.Token || held.Header.Revision <= held.Token {
			t.Errorf("second: %+v after %+v", held, first)
		}
		e.wantWaiting(third, again)
		e.unlock(held.Key)
		last := e.wantHeld(third)
		if last.Token <= held.Token || e.wantHeld(again).Place != last.Place {
			t.Errorf("third: %+v and %+v after %+v", last, again.held, held)
		}
		e.unlock(last.Key)
		if left := e.keys("l"); len(left) > 0 {
			t.Errorf("keys are left: %q", left)
		}
		if len(e.tracked) > 0 {
			t.Errorf("queues are tracked for nobody: %v", e.tracked)
		}
	})
}

// Keys that etcd's recipe has made stand in the same line, and so do those of names below,
// as they do for the recipe.
func TestOneLineWithKeysOfOthers(t *testing.T) {
	run(t, whole, func(e *env) {
		t := e.t
		e.grant(0x1, 0x2)
		put := func(key string) {
			_, err := e.router.Put(e.ctx(), &pb.PutRequest{Key: []byte(key)})
			check(t, err)
		}
		put("l/recipe")
		put("l/below/1")
		put("lock/1") // not of the queue
		l := e.lock("l", 0x1)
		put("l/later")
		e.wantWaiting(l)
		e.unlock("l/recipe")
		e.wantWaiting(l)
		e.unlock("l/below/1")
		e.wantHeld(l)
	})
}

// A release wakes the one whose turn it is: it is one proof for the next holder, and no read
// and no other write, however many wait.
func TestReleaseWakesOne(t *testing.T) {
	waiters := 10_000
	if testing.Short() {
		waiters = 1000
	}
	run(t, whole, func(e *env) {
		t := e.t
		ctx, cancel := context.WithCancel(e.ctx())
		defer cancel()
		e.grant(1)
		held := e.wantHeld(e.lock("l", 1))
		var all sync.WaitGroup
		granted := make(chan Held, waiters)
		for id := range int64(waiters) {
			e.grant(2 + id)
			all.Go(func() {
				h, err := e.Lock(ctx, []byte("l"), 2+id)
				if err == nil {
					granted <- h
				}
			})
		}
		inQueue()
		if n := e.peeks.Load(); n != 1 {
			t.Errorf("the queue was read %d times, want once for all", n)
		}
		for range 3 {
			proofs, txns, reads := e.proofs.Load(), e.txns.Load(), e.reads.Load()
			before := held
			e.unlock(held.Key)
			held = <-granted
			synctest.Wait()
			if len(granted) > 0 || held.Token <= before.Token {
				t.Fatalf("after a release: %+v after %+v, and %d more", held, before, len(granted))
			}
			if n := e.proofs.Load() - proofs; n != 1 {
				t.Errorf("a release made %d waiters prove that they have the lock", n)
			}
			if w, r := e.txns.Load()-txns, e.reads.Load()-reads; w != 0 || r != 0 {
				t.Errorf("a release took %d more writes and %d reads", w, r)
			}
			if held.Header.Revision <= before.Header.Revision {
				t.Errorf("answered at %v after %v", held.Header, before.Header)
			}
		}
		cancel()
		all.Wait()
		if left := e.keys("l"); len(left) != 1 || left[0] != held.Key {
			t.Errorf("%d keys are left, want the holder's", len(left))
		}
	})
}

// A node may hear late of a release, when the lease of the next in turn has ended already
// and somebody else has the lock. It must not answer that the lock is its client's.
func TestGrantIsProved(t *testing.T) {
	runBoth(t, func(e *env) {
		t := e.t
		e.grant(0x1, 0x9, 0x2)
		held := e.wantHeld(e.lock("l", 0x1))
		late := e.lock("l", 0x9)
		next := e.lock("l", 0x2)
		e.proving = func() {
			e.proving = nil
			e.revoke(0x9)
		}
		e.unlock(held.Key)
		e.wantErr(late, ErrLost)
		e.wantHeld(next)
		if left := e.keys("l"); !slices.Equal(left, []string{"l/2"}) {
			t.Errorf("keys %q", left)
		}
	})
}

// Who waits and loses its own session hears of that at once, and hands nothing on.
func TestLostSession(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x1, 0x9, 0x2)
		held := e.wantHeld(e.lock("l", 0x1))
		lost, last := e.lock("l", 0x9), e.lock("l", 0x2)
		e.revoke(0x9)
		e.wantErr(lost, ErrLost)
		e.wantWaiting(last)
		e.unlock(held.Key)
		e.wantHeld(last)
	})
}

// A key that was deleted and made again is another place: who waited with the first has lost
// it, and leaves the second alone.
func TestPlaceOfAnother(t *testing.T) {
	run(t, whole, func(e *env) {
		e.grant(0x1, 0x9)
		held := e.wantHeld(e.lock("l", 0x1))
		old := e.lock("l", 0x9)
		e.unlock("l/9")
		e.wantErr(old, ErrLost)
		renewed := e.lock("l", 0x9)
		e.quit(e.ctx(), Place{Key: "l/9", Token: held.Token + 1})
		e.wantWaiting(renewed)
		e.unlock(held.Key)
		e.wantHeld(renewed)
	})
}

// Who gives up leaves the queue at once; who waits behind goes on.
func TestGivingUp(t *testing.T) {
	runBoth(t, func(e *env) {
		t := e.t
		e.grant(0x1, 0x9, 0x2)
		held := e.wantHeld(e.lock("l", 0x1))
		impatient, patient := e.lock("l", 0x9), e.lock("l", 0x2)
		impatient.cancel()
		e.wantErr(impatient, context.Canceled)
		if left := e.keys("l"); !slices.Equal(left, []string{"l/1", "l/2"}) {
			t.Errorf("keys %q", left)
		}
		e.wantWaiting(patient)
		e.unlock(held.Key)
		e.wantHeld(patient)
	})
}

// Who goes as soon as the queue was read is not missed: it was watched before.
func TestReleaseWhileTheQueueIsRead(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x1, 0x9, 0x2)
		held := e.wantHeld(e.lock("l", 0x1))
		e.peeked = func() { e.peeked = nil; e.unlock(held.Key) }
		second := e.lock("l", 0x9)
		e.wantHeld(second)
		third := e.lock("l", 0x2)
		e.wantWaiting(third)
	})
}

// A queue that can't be read fails those who wait for it, who leave; the next who comes reads
// it anew.
func TestClose(t *testing.T) {
	run(t, whole, func(e *env) {
		t := e.t
		e.grant(0x1, 0x9, 0x2)
		e.wantHeld(e.lock("l", 0x1))
		second := e.lock("l", 0x9)
		e.Close()
		e.wantErr(second, ErrClosed)
		e.wantErr(e.lock("l", 0x2), ErrClosed)
		if left := e.keys("l"); !slices.Equal(left, []string{"l/1"}) {
			t.Errorf("keys %q", left)
		}
	})
}

// Many callers of two nodes' services lock, give up, and lose their sessions: whoever is told
// that it has the lock has it alone, by a token above all before, in the order of asking.
func TestRandomTurns(t *testing.T) {
	for _, m := range []string{"one shard", "a divided queue"} {
		t.Run(m, func(t *testing.T) {
			for seed := range uint64(8) {
				shards := whole
				if m != "one shard" {
					shards = split
				}
				run(t, shards, func(e *env) { randomTurns(e, seed) })
			}
		})
	}
}

func randomTurns(e *env, seed uint64) {
	t := e.t
	// Another service with the same keys stands for another node.
	other := New(e.config())
	defer other.Close()
	var mu sync.Mutex
	var holder string
	var last int64
	const callers, rounds = 12, 12
	var all sync.WaitGroup
	for c := range int64(callers) {
		random := rand.New(rand.NewPCG(seed, uint64(c)))
		s := e.Service
		if c%2 == 1 {
			s = other
		}
		all.Go(func() {
			lease := (c + 1) << 56 >> (4 * (c % 3))
			for range rounds {
				grant, err := e.router.LeaseGrant(e.ctx(), &pb.LeaseGrantRequest{ID: lease, TTL: 3600})
				check(t, err)
				ctx, cancel := context.WithTimeout(e.ctx(), time.Duration(1+random.IntN(200))*time.Millisecond)
				h, err := s.Lock(ctx, []byte("l"), grant.ID)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrLost) {
					t.Errorf("seed %d: lock: %v", seed, err)
				}
				if err == nil {
					mu.Lock()
					if holder != "" || h.Token <= last {
						t.Errorf("seed %d: %s has the lock by %d, and %q by %d", seed, h.Key, h.Token, holder, last)
					}
					holder, last = h.Key, h.Token
					mu.Unlock()
					time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
					mu.Lock()
					holder = ""
					mu.Unlock()
				}
				if random.IntN(2) == 0 && err == nil {
					_, err := s.Unlock(e.ctx(), []byte(h.Key))
					check(t, err)
				}
				_, err = e.router.LeaseRevoke(e.ctx(), &pb.LeaseRevokeRequest{ID: grant.ID})
				check(t, err)
			}
		})
	}
	all.Wait()
	if left := e.keys("l"); len(left) > 0 {
		t.Errorf("seed %d: keys are left: %q", seed, left)
	}
	for _, s := range []*Service{e.Service, other} {
		if len(s.tracked) > 0 {
			t.Errorf("seed %d: queues are tracked for nobody", seed)
		}
	}
}

// Where nothing can be written, those who leave don't wait for each other for longer than one
// of them may take.
func TestLeavingWithoutMajority(t *testing.T) {
	run(t, whole, func(e *env) {
		e.grant(0x1)
		e.wantHeld(e.lock("l", 0x1))
		waiting := make([]*locking, 3*maxLeaving)
		for i := range waiting {
			id := int64(0x100 + i)
			e.grant(id)
			waiting[i] = e.lock("l", id)
		}
		e.wantWaiting(waiting...)
		e.stuck.Store(true)
		for _, l := range waiting {
			l.cancel()
		}
		time.Sleep(maxDeparture + time.Second)
		for _, l := range waiting {
			e.wantErr(l, context.Canceled)
		}
		e.stuck.Store(false)
	})
}
