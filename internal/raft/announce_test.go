package raft

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// announceOnce adds to a cell with a command that announces a number.
func (nd *testNode) announceOnce(cell string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := nd.r.Submit(ctx, Proposal{
		Kind: kindAdd, Payload: []byte(cell), Announces: true, Writes: Writes{Spans: []keys.Span{keys.Point([]byte(cell))}},
	})
	return err
}

// The first command of a term that announces a number asks for one, whatever an earlier term had. Those
// behind it ask for none, and give back the turns that they take, however the term ends.
func TestAnnouncedNumbersAreNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := &counter{last: 1}
		c := makeCluster(t, 3, cluster{oracle: oracle})
		defer c.close()
		term, added := uint64(0), 0
		for round := range int64(3) {
			var a *testNode
			a, term = c.leader(term)
			var wg sync.WaitGroup
			for range 3 {
				if err := a.announceOnce("x"); err != nil {
					t.Fatal(err)
				}
				added++
			}
			if oracle.last != 2+round {
				t.Fatalf("round %d: %d numbers were asked for, want one a term", round, oracle.last-1)
			}
			for range 8 {
				wg.Go(func() { _ = a.announceOnce("y") })
			}
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			c.handOver(c.other(a))
			wg.Wait()
			await(t, func() bool { return len(a.r.host.turns) == 0 })
		}
		nd, _ := c.leader(term)
		if err := nd.announceOnce("x"); err != nil {
			t.Fatal(err)
		}
		if got := nd.m.get("x"); got != uint64(added+1) {
			t.Errorf("added %d times, applied %d times", added+1, got)
		}
	})
}
