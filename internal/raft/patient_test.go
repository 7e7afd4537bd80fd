package raft

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// add submits a command and returns where its outcome comes.
func (nd *testNode) add(t *testing.T, p Proposal) <-chan error {
	t.Helper()
	p.Kind, p.Payload, p.Writes = kindAdd, []byte("x"), Writes{Spans: []keys.Span{keys.Point([]byte("x"))}}
	settled := make(chan error, 1)
	if err := nd.r.SubmitLater(p, nil, func(_ any, err error) { settled <- err }); err != nil {
		t.Fatal(err)
	}
	return settled
}

// A patient command goes with the next that is not, in one entry, or by itself when its
// patience is over; with numbers and without.
func TestPatientCommandGoesWithTheNext(t *testing.T) {
	for name, numbers := range map[string]int{"without numbers": 0, "with numbers": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newOrderedCluster(t, 1)
				defer c.close()
				nd, _ := c.leader(0)
				if err := <-nd.add(t, Proposal{Numbers: numbers}); err != nil {
					t.Fatal(err)
				}
				index := nd.r.Applied()
				first, second := nd.add(t, Proposal{Numbers: numbers, Patience: BehindOthers}), nd.add(t, Proposal{Numbers: numbers, Patience: BehindOthers})
				synctest.Wait()
				if now := nd.r.Applied(); now != index {
					t.Fatalf("%d entries for commands that wait", now-index)
				}
				began := time.Now()
				for _, settled := range []<-chan error{nd.add(t, Proposal{Numbers: numbers}), first, second} {
					if err := <-settled; err != nil {
						t.Fatal(err)
					}
				}
				if now := nd.r.Applied(); now != index+1 || time.Since(began) != 0 {
					t.Fatalf("%d entries after %v", now-index, time.Since(began))
				}
				for batch, want := range map[time.Duration]time.Duration{
					0: minBehindOthers, time.Millisecond: patientBatches * time.Millisecond, time.Second: maxPatience,
				} {
					nd.r.mu.Lock()
					nd.r.took = batch
					nd.r.mu.Unlock()
					began := time.Now()
					if err := <-nd.add(t, Proposal{Numbers: numbers, Patience: BehindOthers}); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(began); took != want {
						t.Fatalf("where batches take %v, a command with none to go with took %v", batch, took)
					}
				}
			})
		})
	}
}

// What waits when the leadership ends never applies, and whoever sent it hears so.
func TestPatientCommandOfADeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		settled := a.add(t, Proposal{Patience: BehindOthers})
		a.r.stepDown(ErrNotLeader)
		if err := <-settled; err != ErrNotLeader { //nolint:errorlint // as it is told
			t.Fatal(err)
		}
	})
}

// What nobody waits for goes to the log in the entry of what comes next. Where nothing comes, or somebody waits
// after all, it goes by itself, and fewer of what comes then wait. One that waits is told of the end of the term.
func TestUnawaitedCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		outcomes := make(chan error, 100)
		submit := func(p Patience) {
			t.Helper()
			err := a.r.SubmitLater(Proposal{Kind: kindAdd, Payload: []byte("x"), Patience: p}, nil, func(_ any, err error) { outcomes <- err })
			if err != nil {
				t.Fatal(err)
			}
		}
		index := uint64(0)
		// settled checks that so many commands apply, in one entry each or together, and how many wait before if that is not -1.
		settled := func(commands, entries uint64, waiting int) {
			t.Helper()
			a.r.mu.Lock()
			waits := 0
			for _, c := range a.r.queue {
				if c.unawaited() {
					waits++
				}
			}
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
		a.r.took = time.Millisecond
		a.r.mu.Unlock()
		index = a.r.Applied()
		submit(Unawaited)
		submit(Unawaited)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if got := a.r.Applied(); got != index {
			t.Fatalf("%d entries, before anything goes with what may wait", got-index)
		}
		submit(NoPatience)
		settled(3, 1, -1)
		for misses := range 3 {
			submit(Unawaited)
			settled(1, 1, 1)
			for range 2 << misses {
				submit(Unawaited)
				settled(1, 1, 0)
			}
		}
		submit(Unawaited)
		a.r.Hurry()
		settled(1, 1, 0)
		for range 16 {
			submit(Unawaited)
			settled(1, 1, 0)
		}
		a.r.Hurry()
		submit(Unawaited)
		settled(1, 1, 0)
		submit(Unawaited)
		a.r.stepDown(ErrNotLeader)
		if err := <-outcomes; !errors.Is(err, ErrNotLeader) {
			t.Errorf("at the end of the term: %v", err)
		}
	})
}
