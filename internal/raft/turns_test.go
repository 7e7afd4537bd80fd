package raft

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(turns, 2)
		first, second := free.take(t.Context()), free.take(t.Context())
		var third turn
		var came atomic.Bool
		begun := time.Now()
		go func() {
			third = free.take(t.Context())
			came.Store(true)
		}()
		synctest.Wait()
		if came.Load() {
			t.Fatal("three of two turns are taken")
		}
		first.end()
		first.end() // a second time does nothing
		synctest.Wait()
		if !came.Load() || third.of == nil || time.Since(begun) != 0 {
			t.Fatal("a turn that is given back was not handed out")
		}
		// Nobody waits for ever.
		late := free.take(t.Context())
		if waited := time.Since(begun); waited != maxTurnWait || late.of != nil {
			t.Fatalf("waited for %v", waited)
		}
		if _, ok := free.try(); ok {
			t.Fatal("a turn was taken that is not there")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if gone := free.take(ctx); gone.of != nil || time.Since(begun) != maxTurnWait {
			t.Fatal("who gave up has a turn, or waited")
		}
		for _, held := range []*turn{&late, &second, &third} {
			held.end()
		}
		if len(free) != 0 {
			t.Fatalf("%d turns were not given back", len(free))
		}
	})
}

// Turns come back whatever becomes of the batches: applied, dropped with the leadership
// before or behind their numbers, or cut off.
func TestTurnsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := &stuck{counter: counter{last: 1}}
		c := makeCluster(t, 3, cluster{oracle: oracle})
		defer c.close()
		for round := range 6 {
			a, _ := c.leader(0)
			oracle.stands.Store(round%3 == 1)
			added := make(chan error, 8)
			for range cap(added) {
				go func() { added <- a.addOnce("x") }()
			}
			if round > 1 {
				time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			} else {
				synctest.Wait()
			}
			if taken := len(a.r.host.turns); round%3 == 1 && taken == 0 {
				t.Fatal("no turn is taken while the oracle stands: the round shows nothing")
			}
			c.handOver(c.other(a))
			for a.r.Serving() != 0 {
				time.Sleep(time.Millisecond)
			}
			oracle.stands.Store(false)
			for range cap(added) {
				<-added
			}
		}
		last, _ := c.leader(0)
		if err := last.addOnce("x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, nd := range c.nodes {
			if taken := len(nd.r.host.turns); taken != 0 {
				t.Errorf("%d turns of a node are still taken", taken)
			}
		}
	})
}
