package raft

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What nobody waits for goes to the log in the entry of what comes next. Where nothing comes, or somebody waits
// after all, it goes by itself, and fewer of what comes then wait. One that waits is told of the end of the term.
func TestCommandsThatMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		outcomes := make(chan error, 100)
		submit := func(mayWait bool) {
			t.Helper()
			err := a.r.SubmitLater(Proposal{Kind: kindAdd, Payload: []byte("x"), MayWait: mayWait}, nil, func(_ any, err error) { outcomes <- err })
			if err != nil {
				t.Fatal(err)
			}
		}
		index := uint64(0)
		// settled checks that so many commands apply, in one entry each or together, and how many wait before if that is not -1.
		settled := func(commands, entries uint64, waiting int) {
			t.Helper()
			a.r.mu.Lock()
			waits := len(a.r.company.calls)
			a.r.mu.Unlock()
			if waiting >= 0 && waits != waiting {
				t.Fatalf("%d commands wait, expected %d", waits, waiting)
			}
			for range commands {
				if err := <-outcomes; err != nil {
					t.Fatal(err)
				}
			}
			if got := a.r.Applied() - index; got != entries {
				t.Fatalf("%d commands are in %d entries, expected %d", commands, got, entries)
			}
			index += entries
		}
		a.r.mu.Lock()
		a.r.company.took = time.Millisecond
		a.r.mu.Unlock()
		index = a.r.Applied()
		submit(true)
		submit(true)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if got := a.r.Applied(); got != index {
			t.Fatalf("%d entries, before anything goes with what may wait", got-index)
		}
		submit(false)
		settled(3, 1, -1)
		for misses := range 3 {
			submit(true)
			settled(1, 1, 1)
			for range 2 << misses {
				submit(true)
				settled(1, 1, 0)
			}
		}
		submit(true)
		a.r.Hurry()
		settled(1, 1, 0)
		for range 16 {
			submit(true)
			settled(1, 1, 0)
		}
		a.r.Hurry()
		submit(true)
		settled(1, 1, 0)
		submit(true)
		a.r.stepDown(ErrNotLeader)
		if err := <-outcomes; !errors.Is(err, ErrNotLeader) {
			t.Errorf("at the end of the term: %v", err)
		}
	})
}
