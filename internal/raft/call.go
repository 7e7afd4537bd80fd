package raft

import (
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Proposal is a command for a shard's log.
type Proposal struct {
	// Kind and Payload are the command's. The payload must not be changed
	// afterwards.
	Kind    Kind
	Payload []byte
	// Numbers is how many of the oracle's numbers the command needs, 0 for one that
	// has no place in the order of revisions. They follow each other.
	Numbers int
	// Announces says, in place of Numbers, that whoever sent the command asks for a number when it has
	// applied. The command carries one that this is above: the highest that was used or promised
	// before. Promises see it as a write with the next.
	Announces bool
	// Follows is the number behind which a command without numbers has its place in the log: of
	// those that have theirs at this leader lower ones go first. 0 is for any place.
	Follows int64
	// Writes are the keys that a command with numbers may write, or one that announces a number.
	Writes Writes
	// ID names the command if it comes from another node; else it is the zero id and
	// one is drawn.
	ID CommandID
	// Term is the only term in which the command may be proposed; 0 leaves that
	// open.
	Term uint64
	// Patience is how long the command may wait for another, to go with it.
	Patience Patience
}

// Writes are the keys that a command may write.
type Writes struct {
	// Unknown says that they are known only when the command applies: they may be
	// any.
	Unknown bool
	Spans   []keys.Span
}

// touches reports whether one of the spans may be written.
func (w *Writes) touches(spans []keys.Span) bool {
	if w.Unknown {
		return true
	}
	for _, s := range w.Spans {
		for _, t := range spans {
			if s.Overlaps(t) {
				return true
			}
		}
	}
	return false
}

// Outcome is what becomes of a command.
type Outcome struct {
	// Result is the machine's, or Err says why there is none.
	Result any
	Err    error
	// Applied says that the state machine decided.
	Applied bool
}

// call is one command on its way, and whoever waits for it.
//
// A call is in exactly one place at a time: the leader's queue, a request for
// numbers, a numbered group, one unsettled batch, or settled. It is settled once.
type call struct {
	// Proposal.Payload is nil if fill makes it when the command leaves the queue.
	Proposal
	// number is the first of the command's numbers, or what it carries that announces one; else 0.
	number int64
	// fill makes the payload at the moment the command is proposed; false
	// says that there is nothing left to do. The leader's mutex is not held.
	fill func() ([]byte, bool)
	// settled receives the outcome. It is called once, with no lock of the replica
	// but leadMu and machineMu held, and must not block.
	settled func(Outcome)
	// until is up to when the call waits for others to go with, if it is patient; else the zero time.
	until time.Time
	// abandoned is set when nobody waits any more. A command that is still in
	// the queue is then dropped.
	abandoned atomic.Bool
}

// settleAll gives every call the same error.
func settleAll(calls []*call, err error) {
	for _, c := range calls {
		c.settled(Outcome{Err: err})
	}
}
