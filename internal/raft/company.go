package raft

import "time"

// A command that nobody waits for goes into the batch of what comes next: one of its own costs every replica
// as much as that one does. It waits for a moment, and not where that is for nothing: the more often nothing came, or somebody
// waited for it after all (Hurry), the fewer do.
const (
	// maxCompanyWait bounds how long a command waits, and companyBatches is how many batches would
	// have applied by then.
	maxCompanyWait = 10 * time.Millisecond
	companyBatches = 4
	// maxMisses bounds how often in a row waiting for nothing counts: behind the last one 2^maxMisses commands don't
	// wait.
	maxMisses = 6
)

// company is the commands that wait for others to go with. It is protected by its replica's mu.
type company struct {
	// calls wait, the oldest first, until timer ends that, or a batch takes them. Invariant: timer runs while there are some.
	calls []*call
	timer *time.Timer
	// took is how long batches take to apply, about; 0 before there was one.
	took time.Duration
	// misses is how often in a row calls have waited for nothing, and skip how many of the next do not wait.
	misses, skip int
}

// waitLocked has a call wait that may, and reports whether it does. r.mu must be held.
func (r *Replica) waitLocked(c *call) bool {
	w := &r.company
	switch {
	case !c.MayWait || w.took == 0:
		return false
	case w.skip > 0:
		w.skip--
		return false
	}
	if w.calls = append(w.calls, c); len(w.calls) == 1 {
		w.timer = time.AfterFunc(min(companyBatches*w.took, maxCompanyWait), r.Hurry)
	}
	return true
}

// Hurry has what waits for other commands go to the log at once, and what comes next not wait.
func (r *Replica) Hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.company
	if len(w.calls) == 0 {
		w.skip = max(w.skip, 1)
		return
	}
	w.misses = min(w.misses+1, maxMisses)
	w.skip = 1 << w.misses
	r.joinLocked()
	r.proposeLocked()
}

// joinLocked puts what waits for other commands into the queue. r.mu must be held.
func (r *Replica) joinLocked() {
	w := &r.company
	if len(w.calls) > 0 {
		w.timer.Stop()
		r.queue = append(r.queue, w.calls...)
		w.calls, w.timer = nil, nil
	}
}

// accompanyLocked puts what waits for other commands into the queue, of which a batch is being made. r.mu must be held.
func (r *Replica) accompanyLocked() {
	if len(r.company.calls) > 0 {
		r.company.misses = 0
		r.joinLocked()
	}
}

// batchTookLocked takes over how long a batch took to apply. r.mu must be held.
func (r *Replica) batchTookLocked(took time.Duration) {
	if w := &r.company; w.took == 0 {
		w.took = took
	} else {
		w.took += (took - w.took) / 4
	}
}
