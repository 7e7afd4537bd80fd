package raft

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// The origin of a command is the node that holds the client's call. Where another
// node leads, the origin hands the command over under an id of its own, aimed at the
// term that it knows, and learns from its own replica what became of it:
//
//   - the id applies: the result is built here, as it is at the leader;
//   - a begin entry above the term applies from the log, and the id has not: it never
//     will;
//   - the state jumps: nobody knows.
//
// What the leader says is needed only where it certainly will not apply the command.
// So a leader that dies costs the client a pause and not an error, and what a node has
// answered its own replica has applied.

// Forward has the leader on another node, to which send hands it, carry out a command and
// returns what became of it. Errors are those of Submit. send need not return before its
// context ends.
func (r *Replica) Forward(ctx context.Context, send func(context.Context, CommandID, uint64) error) (any, error) {
	id := r.host.nextID()
	done := make(chan Outcome, 1)
	term, err := r.expect(id, func(o Outcome) { done <- o })
	if err != nil {
		return nil, err
	}
	defer r.forget(id)
	// The leader's answer may come after the result, and is then not waited for.
	sending, cancel := context.WithCancel(r.ctx)
	sent := make(chan error, 1)
	go func() {
		defer r.wg.Done()
		defer cancel()
		r.Stall("aimed")
		sent <- send(sending, id, term)
	}()
	for {
		select {
		case o := <-done:
			return o.Result, o.Err
		case err := <-sent:
			if err != nil && !unknown(err) {
				return nil, err
			}
			sent = nil
		case <-ctx.Done():
			cancel()
			r.observer.ProposalFailed()
			return nil, context.Cause(ctx)
		}
	}
}

// unknown reports whether an error leaves open whether a command applies.
func unknown(err error) bool {
	return errors.Is(err, ErrTimeout) || errors.Is(err, ErrStopped) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// expect has settled hear what becomes of a command that this node hands to the
// leader on another, and returns the term at which to aim it. The goroutine that hands
// it over counts as the replica's.
func (r *Replica) expect(id CommandID, settled func(Outcome)) (term uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, ErrStopped
	case r.known.ReplicaID == 0, r.known.ReplicaID == r.replicaID, r.known.Term < r.begun:
		return 0, ErrNotLeader
	}
	if r.expected == nil {
		r.expected = make(map[uint64]*call)
	}
	r.wg.Add(1)
	r.expected[id.Sequence] = &call{Proposal: Proposal{Term: r.known.Term}, settled: settled}
	return r.known.Term, nil
}

// forget ends an expectation.
func (r *Replica) forget(id CommandID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expected, id.Sequence)
}

// came takes the call that expects a command, or returns nil. The state machine calls
// it for each command that it accepts and that nobody here proposed.
func (r *Replica) came(id CommandID) *call {
	if id.Origin != r.host.origin {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.expected[id.Sequence]
	delete(r.expected, id.Sequence)
	return c
}

// overtakenLocked takes the calls whose commands the log has passed: those aimed at
// terms below the one that begins. r.mu must be held.
func (r *Replica) overtakenLocked(term uint64, done []settlement) []settlement {
	r.begun = max(r.begun, term)
	for sequence, c := range r.expected {
		if c.Term < r.begun {
			delete(r.expected, sequence)
			done = append(done, settlement{c, Outcome{Err: ErrNotApplied}})
		}
	}
	return done
}

// takeExpectedLocked takes all calls that expect a command. r.mu must be held.
func (r *Replica) takeExpectedLocked() []*call {
	calls := slices.Collect(maps.Values(r.expected))
	clear(r.expected)
	return calls
}
