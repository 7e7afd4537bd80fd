package raft

import (
	"context"
	"runtime"
	"time"
)

// A batch costs about the same in log, messages and applying, however many commands it
// has. Where a node leads many shards and is busy, each of them would make small batches all
// the time. So those with numbers take turns: a few are under way at a time, from the
// request for their numbers to where they have applied, and what comes for the other shards
// meanwhile goes together. Where there is little to do nobody waits.

const (
	// minTurns is how many batches are under way at a time on a machine with few processors.
	minTurns = 2
	// maxTurnWait bounds how long a shard waits for its turn: batches of others may be under
	// way for long, or their shards may have no majority.
	maxTurnWait = 20 * time.Millisecond
)

// turns hands out the turns of a host's replicas, in the order in which they were asked
// for. It is full while all are taken.
type turns chan struct{}

func newTurns() turns { return make(turns, max(minTurns, runtime.GOMAXPROCS(0))) }

// turn is a batch's; the zero value is that of one which has waited for long enough.
type turn struct{ of turns }

// try takes a turn if there is one.
func (t turns) try() (turn, bool) {
	select {
	case t <- struct{}{}:
		return turn{t}, true
	default:
		return turn{}, false
	}
}

// take waits for a turn, or until ctx ends.
func (t turns) take(ctx context.Context) turn {
	timer := time.NewTimer(maxTurnWait)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return turn{t}
	case <-timer.C:
	case <-ctx.Done():
	}
	return turn{}
}

// end gives the turn back, once.
func (t *turn) end() {
	if t.of != nil {
		<-t.of
		t.of = nil
	}
}
