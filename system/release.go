package system

import (
	"context"
	"errors"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// A leader that hands over gives back the numbers below the limit that it has not handed out:
//
//	hold   no number is handed out any more  ->  lower   the limit, through the log, to the last
//
// Only then may the leadership go. The entry applies in no other term, so that whoever counts
// next, from the limit in its state, begins at the last number, or at a limit that was not
// lowered. While the entry is under way no number is handed out in the term, whatever becomes
// of the leadership: one above the lowered limit would be handed out again. When the outcome is
// known and the leadership stays, numbers are handed out below a limit that is raised anew,
// behind that entry.

// Release has the oracle, if it is on this node, hand out nothing more and log that the rest of
// its numbers is free. It returns when that is settled or ctx ends; nothing may come of it.
// resume is called when the leadership has gone, or stays: then numbers are handed out again.
func (c *Cluster) Release(ctx context.Context) (resume func()) {
	if !c.State().allows(lowersLimit) {
		return func() {}
	}
	term, limit, ok := c.counter.hold()
	if !ok {
		return func() {}
	}
	resume = func() { c.counter.resume(term) }
	payload, err := encode(limitCommand{Limit: limit})
	if err != nil {
		c.counter.lowered(term)
		return resume
	}
	settled := make(chan struct{})
	err = c.replica.SubmitLater(raft.Proposal{Kind: raft.Kind(kindLower), Payload: payload, Term: term}, nil, func(_ any, err error) {
		if err == nil || errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrNotApplied) {
			c.counter.lowered(term)
		}
		close(settled)
	})
	if err != nil {
		c.counter.lowered(term) // it was not proposed
		return resume
	}
	select {
	case <-settled:
	case <-ctx.Done():
	}
	return resume
}

// hold ends the handing out of numbers, unless that has been done or there is nothing to
// hold, and returns the term and the last number.
func (c *counter) hold() (term uint64, last int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	order := c.machine.State().Order
	if c.term == 0 || !order.Begun || c.held || c.lowering {
		return 0, 0, false
	}
	c.last = max(c.last, order.Base)
	c.held, c.lowering, c.ahead = true, true, 0
	return c.term, c.last, true
}

// lowered says that the entry of a term has applied or never will.
func (c *counter) lowered(term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun == term {
		c.lowering = false
	}
}

// resume has numbers be handed out again, if the term is still served.
func (c *counter) resume(term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun == term {
		c.held = false
	}
}

// holds reports whether no numbers are handed out.
func (c *counter) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held || c.lowering
}

// lower lowers the oracle's limit. What has been handed out is not above p.
func (r *run) lower(p limitCommand) {
	if p.Limit < r.current().Order.Limit {
		s := r.change()
		s.Order.Limit = p.Limit
		r.out.set(orderKey(), s.Order)
	}
}
