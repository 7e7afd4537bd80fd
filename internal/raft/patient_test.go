package raft

import (
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
				first, second := nd.add(t, Proposal{Numbers: numbers, Patient: true}), nd.add(t, Proposal{Numbers: numbers, Patient: true})
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
				if err := <-nd.add(t, Proposal{Numbers: numbers, Patient: true}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != patience {
					t.Fatalf("a command with none to go with took %v", took)
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
		settled := a.add(t, Proposal{Patient: true})
		a.r.stepDown(ErrNotLeader)
		if err := <-settled; err != ErrNotLeader { //nolint:errorlint // as it is told
			t.Fatal(err)
		}
	})
}
