package raft

import (
	"slices"
	"time"
)

// An entry costs log, messages and applying, however many commands it has. A command that
// changes nothing for anybody before another one does need not have one of its own: it is
// patient (Proposal.Patient), stays in its line, and goes with the next that is not.

// patience bounds how long a command waits so. It is about what passes between the answer that
// lets a client go on and the command that comes of it.
const patience = 2 * time.Millisecond

// patient reports whether a call waits for others to go with.
func (c *call) patient() bool { return !c.until.IsZero() }

// dueIn returns after which time a line is to go: 0 for now, and a negative one where it is empty.
func dueIn(line []*call) time.Duration {
	switch {
	case len(line) == 0:
		return -1
	case !line[0].patient(), slices.ContainsFunc(line, func(c *call) bool { return !c.patient() }):
		return 0
	default:
		return max(0, time.Until(line[0].until))
	}
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
