package raft

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/lni/dragonboat/v4"
)

// The proposer turns the calls that wait into Raft entries.
//
//  1. Take what waits and needs no number of its own, and the groups that have theirs
//     (numbers.go), up to maxBatchCommands and maxBatchBytes. A command that follows a
//     number goes behind the groups of lower ones, and what announces numbers before all (announce.go).
//  2. Give the batch the term's next number and enter it into flight.
//  3. Hand it to dragonboat.
//  4. The state machine settles it when it has applied; a later batch of the
//     term, or a begin entry above the term, that applies from the log settles
//     it as never; dragonboat's "dropped" settles it as never.
//  5. A batch in doubt with no successor is followed by an empty batch; again, after
//     a pause, if that one was dropped.
//
// What may wait for others goes with what may not (patient.go).
//
// At most maxFlight batches are under way, and a second one only where it is worth
// while (roomLocked): the bound is what makes batches, since what arrives meanwhile
// waits and goes together. A goroutine runs only while there is something to do.
const (
	maxFlight        = 2
	maxBatchCommands = 4096
	maxBatchBytes    = 4 << 20
	// manyCommands are a large batch, and what has at most soonApplied left, about, is about to apply.
	manyCommands = 64
	soonApplied  = 2 * time.Millisecond
	// maxQueue bounds the calls that wait, etcd's bound on requests between
	// commit and apply.
	maxQueue = 5000
	// successorPause lies between two empty batches behind the same batch in doubt.
	// While dragonboat transfers the leadership it drops them at once.
	successorPause = 2 * time.Millisecond
)

// flight is a batch under way.
type flight struct {
	term   uint64
	number uint64
	// calls are in the order of the log: those without numbers, and those of the groups.
	calls  []*call
	groups []*group
	// applied is dragonboat's word on the entry; nil once it was read, or when it
	// was never given.
	applied chan dragonboat.RequestResult
	state   *dragonboat.RequestState
	// doubt is set when dragonboat gave up on the entry without knowing.
	doubt bool
	// proposed is when it was given to dragonboat.
	proposed time.Time
}

// leave wakes those who wait for the batch's groups. The replica's mu must be held.
func (f *flight) leave() {
	for _, g := range f.groups {
		g.leave()
	}
}

// Propose is Submit of a command without numbers.
func (r *Replica) Propose(ctx context.Context, kind Kind, payload []byte) (any, error) {
	return r.Submit(ctx, Proposal{Kind: kind, Payload: payload})
}

// Submit puts one command through the log and returns its result. Errors:
// ErrNotLeader, ErrNotApplied, ErrTooManyRequests and ErrRequestTooLarge say
// that it never will apply; a context's error and ErrTimeout that it may; any
// other error is the machine's rejection.
func (r *Replica) Submit(ctx context.Context, p Proposal) (any, error) {
	o, err := r.Decide(ctx, p)
	if err != nil {
		return nil, err
	}
	return o.Result, o.Err
}

// Decide is Submit, with the outcome apart from the errors of the way there.
func (r *Replica) Decide(ctx context.Context, p Proposal) (Outcome, error) {
	if len(p.Payload) > MaxPayload {
		return Outcome{}, ErrRequestTooLarge
	}
	if ctx.Err() != nil {
		return Outcome{}, context.Cause(ctx)
	}
	done := make(chan Outcome, 1)
	c := &call{Proposal: p, settled: func(o Outcome) { done <- o }}
	if err := r.submit(c); err != nil {
		return Outcome{}, err
	}
	select {
	case o := <-done:
		r.Stall("settled")
		if errors.Is(o.Err, ErrNotApplied) || errors.Is(o.Err, ErrNotLeader) || errors.Is(o.Err, ErrTimeout) {
			r.observer.ProposalFailed()
		}
		return o, nil
	case <-ctx.Done():
		c.abandoned.Store(true)
		r.observer.ProposalFailed()
		return Outcome{}, context.Cause(ctx)
	}
}

// SubmitLater queues a command whose payload fill makes when it is proposed, or
// withdraws by returning false; nil stands for the payload of p. settled is called
// exactly once if SubmitLater returns nil. Neither may block or wait for the
// replica; settled may queue the next command.
func (r *Replica) SubmitLater(p Proposal, fill func() ([]byte, bool), settled func(result any, err error)) error {
	return r.submit(&call{Proposal: p, fill: fill, settled: func(o Outcome) { settled(o.Result, o.Err) }})
}

// queuedLocked returns the number of calls that are in no batch and in no request for numbers.
func (r *Replica) queuedLocked() int { return len(r.queue) + len(r.announcing) + len(r.waiting) }

func (r *Replica) submit(c *call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrStopped
	case r.serving == 0, c.Term != 0 && c.Term != r.serving:
		return ErrNotLeader
	case r.queuedLocked() >= maxQueue:
		return ErrTooManyRequests
	}
	line := &r.queue
	switch {
	case c.Announces && r.noted == r.serving:
		line = &r.announcing
	case c.count() > 0:
		line = &r.waiting
	}
	r.waitsLocked(c)
	*line = append(*line, c)
	if !r.proposing || endsEarlier(*line) || len(*line) == manyCommands {
		r.proposeLocked()
	}
	return nil
}

// proposeLocked has the proposer look at what there is to do. r.mu must be held.
func (r *Replica) proposeLocked() {
	if r.proposing {
		r.wake()
		return
	}
	if !r.closed {
		r.proposing = true
		r.wg.Add(1)
		go r.proposer()
	}
}

// proposer runs until nothing waits and nothing is under way.
func (r *Replica) proposer() {
	defer r.wg.Done()
	var succeeded *flight // the last batch in doubt that was given a successor
	for {
		r.mu.Lock()
		term := r.serving
		switch {
		case r.wantsTurnLocked() && !r.awaitingTurn:
			if turn, ok := r.host.turns.try(); ok {
				r.useTurnLocked(turn)
			} else {
				r.awaitingTurn = true
				r.wg.Add(1)
				go r.awaitTurn()
			}
			r.mu.Unlock()
		case term != 0 && !r.held && r.roomLocked() && (len(r.ready) > 0 || r.announced != nil || dueIn(r.queue) == 0):
			f := r.takeLocked(term)
			r.mu.Unlock()
			r.send(f, true)
		case term != 0 && r.needsSuccessorLocked(term):
			doubtful, changed := r.flight[len(r.flight)-1], r.changed
			r.mu.Unlock()
			if doubtful == succeeded {
				r.pause(changed, successorPause)
			}
			succeeded = doubtful
			r.send(&flight{term: term}, false)
		case r.queuedLocked()+len(r.flight)+len(r.asks)+len(r.ready) == 0 && !r.awaitingTurn, r.closed:
			r.proposing = false
			r.mu.Unlock()
			return
		default:
			waiting := r.waitingLocked()
			impatient, stop := r.impatientLocked()
			r.mu.Unlock()
			r.await(waiting, impatient)
			stop()
		}
	}
}

// roomLocked reports whether a batch may go. One beside another costs as much as that, and what is in it could go with
// what comes meanwhile. So it goes only where it is large, or the other is not about to apply. r.mu must be held.
func (r *Replica) roomLocked() bool {
	switch len(r.flight) {
	case 0:
		return true
	case maxFlight:
		return false
	}
	last, took := r.flight[len(r.flight)-1], r.took
	if last.doubt || took == 0 || took-time.Since(last.proposed) > soonApplied {
		return true
	}
	waiting := len(r.queue)
	for _, g := range r.ready {
		waiting += len(g.calls)
	}
	return waiting >= manyCommands
}

// room is what is taken of a batch.
type room struct{ calls, bytes int }

// take takes room for more calls, all or none. The first always fit.
func (r *room) take(calls ...*call) bool {
	bytes := 0
	for _, c := range calls {
		bytes += len(c.Payload)
	}
	if r.calls > 0 && (r.calls+len(calls) > maxBatchCommands || r.bytes+bytes > maxBatchBytes) {
		return false
	}
	r.calls, r.bytes = r.calls+len(calls), r.bytes+bytes
	return true
}

// takeLocked makes the next batch of what waits. Its groups stay in sight of reads.
// r.mu must be held.
func (r *Replica) takeLocked(term uint64) *flight {
	f := &flight{term: term}
	var room room
	r.takeAnnouncingLocked(f, &room)
	r.takePlainLocked(f, &room)
	for len(r.ready) > 0 && room.take(r.ready[0].calls...) {
		f.groups = append(f.groups, r.ready[0])
		f.calls = append(f.calls, r.ready[0].calls...)
		r.ready = r.ready[1:]
		r.takePlainLocked(f, &room)
	}
	r.tookAlongLocked(f.calls)
	r.sending = f
	return f
}

// takePlainLocked takes what waits without a number and follows none of the groups that are still
// ready. What it follows has its place in the log by then: lower numbers are not used any
// more. r.mu must be held.
func (r *Replica) takePlainLocked(f *flight, room *room) {
	next := int64(math.MaxInt64)
	if len(r.ready) > 0 {
		next = r.ready[0].first
	}
	kept := r.queue[:0]
	for i, c := range r.queue {
		if c.Follows >= next {
			kept = append(kept, c)
			continue
		}
		if !room.take(c) {
			kept = append(kept, r.queue[i:]...)
			break
		}
		f.calls = append(f.calls, c)
		r.used = max(r.used, c.Follows)
	}
	clear(r.queue[len(kept):])
	r.queue = kept
}

// needsSuccessorLocked reports whether the newest batch of the term is in doubt.
// r.mu must be held.
func (r *Replica) needsSuccessorLocked(term uint64) bool {
	if len(r.flight) == 0 {
		return false
	}
	last := r.flight[len(r.flight)-1]
	return last.term == term && last.doubt
}

// send proposes a batch. Calls that nobody waits for any more, or that withdraw,
// are left out; a batch of calls of which none is left is not sent.
func (r *Replica) send(f *flight, wanted bool) {
	calls, body, numbered := r.encode(f.calls)
	r.Stall("batch")
	r.mu.Lock()
	f.calls, r.sending = calls, nil
	if wanted && len(calls) == 0 || r.serving != f.term {
		f.leave()
		r.mu.Unlock()
		settleAll(calls, ErrNotLeader)
		return
	}
	r.number++
	f.number, f.proposed = r.number, time.Now()
	r.flight = append(r.flight, f)
	r.mu.Unlock()
	header := batchHeader{term: f.term, number: f.number, count: uint64(len(calls)), numbered: numbered, compacted: -1}
	for _, g := range f.groups {
		header.compacted = max(header.compacted, g.compacted)
	}
	r.Stall("propose")
	entry := appendBatchHeader(make([]byte, 0, len(body)+32), header)
	rs, err := r.nh.Propose(r.session, append(entry, body...), r.host.attempt())
	r.mu.Lock()
	if err == nil {
		f.state, f.applied = rs, rs.AppliedC()
		r.mu.Unlock()
		return
	}
	never := r.dropLocked(f)
	r.mu.Unlock()
	if never {
		settleAll(f.calls, ErrNotApplied)
	}
	r.log.Debug("batch refused", slog.Uint64("shard", r.shardID), slog.Any("error", err))
}

// encode returns the calls that are still wanted and their commands, with numbers if some call has one.
func (r *Replica) encode(calls []*call) (kept []*call, body []byte, numbered bool) {
	size := 0
	for _, c := range calls {
		size += len(c.Payload) + 32
		numbered = numbered || c.number != 0
	}
	body = make([]byte, 0, size)
	kept = make([]*call, 0, len(calls))
	for _, c := range calls {
		if c.abandoned.Load() {
			c.settled(Outcome{Err: ErrNotApplied})
			continue
		}
		payload := c.Payload
		if c.fill != nil {
			var ok bool
			if payload, ok = c.fill(); !ok {
				c.settled(Outcome{Err: ErrNotApplied})
				continue
			}
		}
		id := c.ID
		if id == (CommandID{}) {
			id = r.host.nextID()
		}
		body = appendCommand(body, Command{ID: id, Number: c.number, Kind: c.Kind, Payload: payload}, numbered)
		kept = append(kept, c)
	}
	return kept, body, numbered
}

// waitingLocked returns the batches that dragonboat has still to speak of.
// r.mu must be held.
func (r *Replica) waitingLocked() [maxFlight]*flight {
	var w [maxFlight]*flight
	n := 0
	for _, f := range r.flight {
		if f.applied != nil && n < maxFlight {
			w[n] = f
			n++
		}
	}
	return w
}

// await waits until the proposer has something to look at.
func (r *Replica) await(waiting [maxFlight]*flight, impatient <-chan time.Time) {
	var applied [maxFlight]chan dragonboat.RequestResult
	for i, f := range waiting {
		if f != nil {
			applied[i] = f.applied
		}
	}
	select {
	case <-r.kick:
	case <-impatient:
	case result := <-applied[0]:
		r.reported(waiting[0], result)
	case result := <-applied[1]:
		r.reported(waiting[1], result)
	}
}

// reported takes dragonboat's word on a batch. What applied has been settled by
// the state machine before; a batch that completed and is still in flight was
// turned away there.
func (r *Replica) reported(f *flight, result dragonboat.RequestResult) {
	f.state.Release()
	r.mu.Lock()
	f.applied, f.state = nil, nil
	never := result.Completed() || result.Dropped()
	if never {
		never = r.dropLocked(f)
	} else {
		f.doubt = true
	}
	r.mu.Unlock()
	if never {
		settleAll(f.calls, ErrNotApplied)
	}
}

// batchTookLocked takes over how long a batch took to apply. r.mu must be held.
func (r *Replica) batchTookLocked(took time.Duration) {
	if r.took == 0 {
		r.took = took
	} else {
		r.took += (took - r.took) / 4
	}
}

// dropLocked takes f out of flight and reports whether it was there. r.mu must
// be held.
func (r *Replica) dropLocked(f *flight) bool {
	for i, g := range r.flight {
		if g == f {
			r.flight = append(r.flight[:i], r.flight[i+1:]...)
			f.leave()
			return true
		}
	}
	return false
}

// arrived takes the batch out of flight and returns its calls, or nil when
// nobody on this node waits for it. The state machine calls it when it accepts
// the batch.
func (r *Replica) arrived(term, number uint64) []*call {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range r.flight {
		if f.term == term && f.number == number {
			r.flight = append(r.flight[:i], r.flight[i+1:]...)
			r.batchTookLocked(time.Since(f.proposed))
			if len(f.groups) > 0 {
				r.applying = append(r.applying, f)
			}
			r.wake()
			return f.calls
		}
	}
	return nil
}

// passed settles as never applied what the log has now passed: the batches of earlier
// terms, those of the term with a lower number, and the commands handed to leaders
// of earlier terms.
func (r *Replica) passed(term, number uint64, done []settlement) []settlement {
	r.mu.Lock()
	defer r.mu.Unlock()
	if term > r.begun {
		done = r.overtakenLocked(term, done)
	}
	kept := r.flight[:0]
	for _, f := range r.flight {
		if f.term > term || f.term == term && f.number >= number {
			kept = append(kept, f)
			continue
		}
		for _, c := range f.calls {
			done = append(done, settlement{c, Outcome{Err: ErrNotApplied}})
		}
		f.leave()
	}
	if len(kept) != len(r.flight) {
		r.wake()
	}
	clear(r.flight[len(kept):])
	r.flight = kept
	return done
}

// lost settles everything under way, here or at another leader, as of unknown outcome. Promises that wait for
// some of it fail.
func (r *Replica) lost() {
	r.mu.Lock()
	flights := r.flight
	r.flight = nil
	r.jumps++
	for _, f := range flights {
		f.leave()
	}
	expected := r.takeExpectedLocked()
	r.mu.Unlock()
	settleAll(expected, ErrTimeout)
	for _, f := range flights {
		settleAll(f.calls, ErrTimeout)
	}
	r.wake()
}

// attempt is how long dragonboat keeps a proposal or a read before it gives up
// on it: it drops both silently when the leader changes.
func (h *Host) attempt() time.Duration { return 2 * h.election() }
