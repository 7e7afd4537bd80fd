package raft

import (
	"context"
	"slices"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A command of an ordered shard gets its number before it gets its place in a
// batch:
//
//		waiting -> ask -> ready group -> batch in flight -> applied
//
//	 1. The calls that a request for numbers serves are fixed when it is sent, which
//	    is when it is the batch's turn (turns.go).
//	    Numbers that are left over are thrown away.
//	 2. Requests are answered in any order and used in the order they were sent.
//	 3. The calls get their numbers, and become a group that reads can see, in one
//	    step under the replica's mutex; and only if the first number is above all
//	    that was promised (promise.go) and all that was used. Else they are asked for
//	    again.
//	 4. What is ready goes together with what needs no numbers into the next batch.
//
// Only numbers asked for in the term served are used: a term that ends takes its
// requests with it.
const (
	// maxAsks bounds the requests under way.
	maxAsks = 4
	// askPause lies between a request that failed and the next.
	askPause = 2 * time.Millisecond
)

// ask is a request for numbers.
type ask struct {
	calls []*call
	// turn is that of the batch, which ends with the request, or with the group that has
	// the numbers. Protected by the replica's mu.
	turn turn
	// answered is closed when the attempt under way has an answer or was given up,
	// and replaced by the next attempt's. Protected by the replica's mu.
	answered chan struct{}
	// block is the answer; ok says that there is one. Protected by mu.
	block Block
	ok    bool
}

// count returns how many numbers the calls need.
func (a *ask) count() int {
	n := 0
	for _, c := range a.calls {
		n += c.count()
	}
	return n
}

// group is calls with numbers that rise, none of them applied.
type group struct {
	calls []*call
	// first is the lowest number.
	first int64
	// compacted is the cluster's compaction revision when the numbers were handed out.
	compacted int64
	// points and others say what the calls may write; nil until somebody asked.
	points map[string]struct{}
	others []*Writes
	// gone is closed when the group has applied or never will; nil until somebody
	// waits for it.
	gone chan struct{}
	// turn ends when the group leaves the table.
	turn turn
}

// touches reports whether a call of the group may write one of the spans.
func (g *group) touches(spans []keys.Span) bool {
	if g.points == nil {
		g.index()
	}
	for _, w := range g.others {
		if w.touches(spans) {
			return true
		}
	}
	for _, s := range spans {
		if s.IsPoint() {
			if _, ok := g.points[string(s.Start)]; ok {
				return true
			}
			continue
		}
		for key := range g.points {
			if s.Contains([]byte(key)) {
				return true
			}
		}
	}
	return false
}

// index sorts what the calls may write into single keys and the rest.
func (g *group) index() {
	g.points = make(map[string]struct{}, len(g.calls))
	for _, c := range g.calls {
		if c.Writes.Unknown || slices.ContainsFunc(c.Writes.Spans, func(s keys.Span) bool { return !s.IsPoint() }) {
			g.others = append(g.others, &c.Writes)
			continue
		}
		for _, s := range c.Writes.Spans {
			g.points[string(s.Start)] = struct{}{}
		}
	}
}

// leave wakes those who wait for the group. The replica's mu must be held, and the
// group must have left the table.
func (g *group) leave() {
	g.turn.end()
	if g.gone != nil {
		close(g.gone)
		g.gone = nil
	}
}

// asksLocked reports whether numbers are to be asked for. r.mu must be held.
func (r *Replica) asksLocked() bool {
	return r.serving != 0 && !r.held && len(r.asks) < maxAsks && dueIn(r.waiting) == 0
}

// awaitTurn waits for a turn, and uses it if that is still wanted then.
func (r *Replica) awaitTurn() {
	defer r.wg.Done()
	turn := r.host.turns.take(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitingTurn = false
	r.useTurnLocked(turn)
	r.wake()
}

// wantsTurnLocked reports whether there is something to do that takes a turn. r.mu must be held.
func (r *Replica) wantsTurnLocked() bool { return r.asksLocked() || r.announcesLocked() }

// useTurnLocked gives a turn to what goes without a request first, or has numbers be asked for. r.mu
// must be held.
func (r *Replica) useTurnLocked(turn turn) {
	switch {
	case r.announcesLocked():
		r.announced = &group{turn: turn}
	case r.asksLocked():
		r.askLocked(turn)
	default:
		turn.end()
	}
}

// askLocked sends the calls that wait for numbers on their way to the oracle, as many
// as a batch holds. r.mu must be held, and the replica must serve.
func (r *Replica) askLocked(turn turn) {
	var room room
	n := 0
	for n < len(r.waiting) && room.take(r.waiting[n]) {
		n++
	}
	a := &ask{calls: slices.Clone(r.waiting[:n]), turn: turn}
	rest := copy(r.waiting, r.waiting[n:])
	clear(r.waiting[rest:])
	r.waiting = r.waiting[:rest]
	r.asks = append(r.asks, a)
	r.attemptLocked(a, 0)
}

// attemptLocked asks for the numbers of a once, perhaps after a pause. r.mu must be
// held, and the replica must serve, which the numbers are for.
func (r *Replica) attemptLocked(a *ask, pause time.Duration) {
	a.answered = make(chan struct{})
	r.wg.Add(1)
	go r.attempt(a, Leading{r.shardID, r.serving}, pause)
}

func (r *Replica) attempt(a *ask, by Leading, pause time.Duration) {
	defer r.wg.Done()
	if pause > 0 {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		r.pause(changed, pause)
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.host.askTimeout())
	defer cancel()
	block, err := r.oracle.Ask(ctx, a.count(), by)
	r.Stall("numbers")
	r.mu.Lock()
	close(a.answered)
	used := r.used
	var dropped []*call
	switch {
	case !slices.Contains(r.asks, a):
		// The term has ended.
	case err == nil:
		a.block, a.ok, r.noted = block, true, by.Term
		r.admitLocked()
	default:
		if dropped = a.dropLocked(); len(a.calls) > 0 {
			r.attemptLocked(a, askPause)
			break
		}
		r.asks = slices.DeleteFunc(r.asks, func(b *ask) bool { return a == b })
		a.turn.end()
		r.admitLocked()
	}
	r.wake()
	rose, used := r.used > used, r.used
	r.mu.Unlock()
	if rose && r.numbered != nil {
		r.numbered(used)
	}
	settleAll(dropped, ErrNotApplied)
}

// dropLocked takes the calls that nobody waits for out of the request.
func (a *ask) dropLocked() (dropped []*call) {
	a.calls = slices.DeleteFunc(a.calls, func(c *call) bool {
		gone := c.abandoned.Load()
		if gone {
			dropped = append(dropped, c)
		}
		return gone
	})
	return dropped
}

// admitLocked makes groups of the requests that have been answered, as far as it
// is their turn. A request whose numbers have been overtaken is sent again. r.mu
// must be held.
func (r *Replica) admitLocked() {
	for len(r.asks) > 0 && r.asks[0].ok {
		a := r.asks[0]
		if a.block.First <= max(r.promised, r.used) {
			a.ok = false
			r.attemptLocked(a, 0)
			return
		}
		r.asks = r.asks[1:]
		number := a.block.First
		for _, c := range a.calls {
			c.number = number
			number += int64(c.count())
		}
		r.used = number - 1
		r.ready = append(r.ready, &group{calls: a.calls, first: a.block.First, compacted: a.block.Compacted, turn: a.turn})
	}
}

// askTimeout bounds one attempt at getting numbers. An attempt that is given up is made
// anew from the start, so that the bound must be longer than the slowest answer over links
// on which Raft still works: where a message and its answer take an election timeout, the
// question and the oracle's proof take two, and one more where the limit is raised first.
// An attempt that can't be answered ends sooner, with the oracle's term or with the stream
// to its node.
func (h *Host) askTimeout() time.Duration { return 2 * h.attempt() }
