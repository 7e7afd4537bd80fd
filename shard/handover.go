package shard

import (
	"context"
	"fmt"
	"time"
)

const (
	// quietTimeout bounds how long a leader proposes nothing before it hands over.
	quietTimeout = 200 * time.Millisecond
	// quietPause lies between two looks at what is under way.
	quietPause = time.Millisecond
)

// Transfer has this replica, if it leads, hand over to another. It does not wait, and
// nothing may come of it.
func (r *Replica) Transfer(to uint64) error {
	if err := r.nh.RequestLeaderTransfer(r.shardID, to); err != nil {
		return fmt.Errorf("transfer leadership of shard %d: %w", r.shardID, err)
	}
	return nil
}

// HandOver is Transfer at a moment when nothing is under way, and waits until another
// serves, as far as this replica has applied, or ctx ends. applied asks the other replica how
// far it has applied.
//
// The other does not take over while it has entries to apply, and this one proposes
// nothing until it has given up on it, for an election timeout. So what is under way is
// waited for first, for a moment, while new calls wait in the queue; they are told
// to go to the new leader.
func (r *Replica) HandOver(ctx context.Context, to uint64, applied func(context.Context) (uint64, error)) error {
	r.hold(true)
	defer r.hold(false)
	quiet, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	for !r.quiet(quiet, applied) && quiet.Err() == nil {
		t := time.NewTimer(quietPause)
		select {
		case <-t.C:
		case <-quiet.Done():
			t.Stop()
		}
	}
	if err := r.Transfer(to); err != nil {
		return err
	}
	return r.until(ctx, func() bool { return r.ledElsewhereLocked() && r.applied.term >= r.known.Term })
}

// hold has the proposer leave new calls where they are, or take them again.
func (r *Replica) hold(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = on
	r.wake()
}

// quiet reports whether nothing is under way and the other replica has applied all.
func (r *Replica) quiet(ctx context.Context, applied func(context.Context) (uint64, error)) bool {
	r.mu.Lock()
	under, mine := len(r.flight) > 0 || r.sending != nil, r.applied.index
	r.mu.Unlock()
	if under {
		return false
	}
	index, err := applied(ctx)
	return err == nil && index >= mine
}
