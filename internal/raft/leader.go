package raft

import (
	"log/slog"
	"time"
)

// beginPause is how long a replica that dragonboat calls leader waits after a
// refused begin entry before it proposes the next.
const beginPause = 2 * time.Millisecond

// leaderUpdated takes dragonboat's word of who leads. The host calls it from its
// queue, one report after the other.
func (r *Replica) leaderUpdated(l Leader) {
	r.mu.Lock()
	if r.closed || l.Term < r.known.Term || l == r.known {
		r.mu.Unlock()
		return
	}
	switch {
	case l.ReplicaID != 0:
		r.leaderless = time.Time{}
	case r.leaderless.IsZero():
		r.leaderless = time.Now()
	}
	r.known = l
	r.over.renew(r.ctx)
	if l.ReplicaID != 0 && l.Term != r.led {
		r.led = l.Term
		r.later.renew(r.ctx)
	}
	r.notifyLocked()
	mine := l.ReplicaID == r.replicaID
	start := mine && r.beginning != l.Term && r.serving != l.Term
	if start {
		r.beginning = l.Term
		r.wg.Add(1)
	}
	lead := r.serving
	r.mu.Unlock()
	if lead != 0 && (!mine || lead != l.Term) {
		r.Stall("deposed")
		r.stepDown(ErrNotLeader)
	}
	if start {
		go r.begin(l.Term)
	}
}

// begin proposes Begin(term) until it has applied here or dragonboat reports
// another term; then, and only then, the replica serves.
func (r *Replica) begin(term uint64) {
	defer r.wg.Done()
	for {
		r.mu.Lock()
		mine := !r.closed && r.known == Leader{r.replicaID, term}
		begun, changed := r.applied.term, r.changed
		if !mine || begun >= term {
			if r.beginning == term {
				r.beginning = 0
			}
		}
		r.mu.Unlock()
		switch {
		case !mine || begun > term:
			return
		case begun == term:
			r.Stall("begun")
			r.serve(term)
			return
		}
		rs, err := r.nh.Propose(r.session, appendBegin(nil, term), r.host.attempt())
		if err != nil {
			r.pause(changed, beginPause)
			continue
		}
		select {
		case <-changed:
		case result := <-rs.AppliedC():
			if !result.Completed() {
				r.log.Debug("begin entry did not apply", slog.Uint64("shard", r.shardID), slog.Uint64("term", term))
				r.pause(changed, beginPause)
			}
		}
	}
}

// serve starts the term, unless dragonboat has reported another meanwhile.
func (r *Replica) serve(term uint64) {
	r.leadMu.Lock()
	defer r.leadMu.Unlock()
	if r.leads != nil {
		r.leads.Began(term)
	}
	r.mu.Lock()
	ok := !r.closed && r.known == Leader{r.replicaID, term} && r.applied.term == term
	if ok {
		r.serving = term
		r.number = r.applied.number
		for _, f := range r.flight {
			if f.term == term {
				r.number = max(r.number, f.number) // numbers are never used twice
			}
		}
		r.notifyLocked()
	}
	r.mu.Unlock()
	if !ok && r.leads != nil {
		r.leads.Ended()
	}
}

// stepDown ends the term served, if any. What was not yet proposed gets err;
// what was waits for its outcome.
func (r *Replica) stepDown(err error) {
	r.leadMu.Lock()
	defer r.leadMu.Unlock()
	r.mu.Lock()
	led := r.serving != 0
	r.serving = 0
	calls := r.clearLocked()
	if led {
		r.notifyLocked()
	}
	r.mu.Unlock()
	settleAll(calls, err)
	if led && r.leads != nil {
		r.leads.Ended()
	}
}

// clearLocked takes out of the leader's memory the calls that have not been
// proposed, and returns them. r.mu must be held.
func (r *Replica) clearLocked() []*call {
	calls := append(append(r.queue, r.announcing...), r.waiting...)
	for _, a := range r.asks {
		a.turn.end()
		calls = append(calls, a.calls...)
	}
	for _, g := range r.ready {
		calls = append(calls, g.calls...)
		g.leave()
	}
	if r.announced != nil {
		r.announced.leave()
	}
	r.queue, r.announcing, r.announced, r.waiting, r.asks, r.ready = nil, nil, nil, nil, nil, nil
	return calls
}

// tick passes the host's tick on to what the leader keeps in memory.
func (r *Replica) tick() {
	if r.leads == nil || r.Serving() == 0 {
		return
	}
	r.leadMu.Lock()
	defer r.leadMu.Unlock()
	if r.Serving() != 0 {
		r.leads.Tick()
	}
}
