package raft

import (
	"slices"
	"time"
)

// An entry costs every replica log, messages and applying, however many commands it has. A
// command that need not go at once stays in its line and goes with the next that must, in one
// entry, or by itself when its time is over.

// Patience says how long a command may wait for another to go with it.
type Patience uint8

const (
	// NoPatience is of a command that goes at once.
	NoPatience Patience = iota
	// BehindOthers is of one that changes nothing for anybody before another command does. What lets a client go on
	// to that is often a batch that was under way: it waits for some batches' time.
	BehindOthers
	// Unawaited is of one that nobody waits for: it waits as long, unless somebody
	// comes to wait (Hurry), and not where that is for nothing: the more often nothing came, or
	// somebody waited after all, the fewer do.
	Unawaited
)

const (
	// patientBatches is how many batches would have applied when the patience of a command is over, and maxPatience bounds
	// that. A command behind others waits for minBehindOthers at least.
	patientBatches  = 4
	maxPatience     = 10 * time.Millisecond
	minBehindOthers = 2 * time.Millisecond
	// maxMisses bounds how often in a row waiting for nothing counts: behind the last one
	// 2^maxMisses unawaited commands don't wait.
	maxMisses = 6
)

// unawaited is what a replica knows of waiting without being waited for. It is protected by its replica's mu.
type unawaited struct {
	// misses is how often in a row commands have waited for nothing, and skip how many of the next do not wait.
	misses, skip int
}

// patient reports whether a call waits for others to go with.
func (c *call) patient() bool { return !c.until.IsZero() }

// unawaited reports whether a call waits for others and nobody waits for it.
func (c *call) unawaited() bool { return c.patient() && c.Patience == Unawaited }

// waitsLocked sets up to when a call waits for others. r.mu must be held.
func (r *Replica) waitsLocked(c *call) {
	u := &r.unawaited
	patience := min(patientBatches*r.took, maxPatience)
	switch {
	case c.Patience == BehindOthers:
		c.until = time.Now().Add(max(patience, minBehindOthers))
	case c.Patience != Unawaited, r.took == 0:
	case u.skip > 0:
		u.skip--
	default:
		c.until = time.Now().Add(patience)
	}
}

// endsEarlier reports whether the last call of a line has to go before the proposer, which has seen
// the others, would look at the line again.
func endsEarlier(line []*call) bool {
	if len(line) < 2 {
		return true
	}
	last, before := line[len(line)-1], line[len(line)-2]
	return before.patient() && last.until.Before(before.until)
}

// dueIn returns after which time a line is to go: 0 for now, and a negative one where it is empty.
func dueIn(line []*call) time.Duration {
	if len(line) == 0 {
		return -1
	}
	first := line[0].until
	for _, c := range line {
		if !c.patient() {
			return 0
		}
		if c.until.Before(first) {
			first = c.until
		}
	}
	return max(0, time.Until(first))
}

// impatientLocked returns a channel on which something comes when patience ends in one of the lines,
// nil if it need not be waited for, and what ends it. r.mu must be held.
func (r *Replica) impatientLocked() (over <-chan time.Time, stop func() bool) {
	next := dueIn(r.queue)
	if in := dueIn(r.waiting); next <= 0 || in > 0 && in < next {
		next = in
	}
	if next <= 0 {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(next)
	return t.C, t.Stop
}

// Hurry has unawaited commands go to the log at once, and what comes next not wait.
func (r *Replica) Hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	waited := false
	for _, c := range r.queue {
		if c.unawaited() {
			c.until, waited = time.Time{}, true
		}
	}
	if !waited {
		r.unawaited.skip = max(r.unawaited.skip, 1)
		return
	}
	r.unawaited.miss()
	r.proposeLocked()
}

// miss notes that commands have waited for nothing.
func (u *unawaited) miss() {
	u.misses = min(u.misses+1, maxMisses)
	u.skip = 1 << u.misses
}

// tookAlongLocked notes whether unawaited commands of a batch have waited for nothing. r.mu must be held.
func (r *Replica) tookAlongLocked(batch []*call) {
	waited := func(c *call) bool { return c.unawaited() }
	switch {
	case !slices.ContainsFunc(batch, waited):
	case slices.ContainsFunc(batch, func(c *call) bool { return !waited(c) }):
		r.unawaited.misses = 0
	default:
		r.unawaited.miss()
	}
}
