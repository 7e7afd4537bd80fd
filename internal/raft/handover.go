package raft

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// quietTimeout bounds how long a leader proposes nothing before it hands over; that is
	// longer where the other node takes longer to answer.
	quietTimeout = 200 * time.Millisecond
	// quietPause lies between two looks at what is under way.
	quietPause = time.Millisecond
)

// ErrNotTaken is returned for a leadership that another replica can't take over now.
var ErrNotTaken = errors.New("raft: the other replica does not take over")

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
//
// ErrNotTaken says that nothing has changed: the other does not vote, does not answer over Raft, is not as
// far in time, or has not stood for election. Nothing is held up for one that can't
// take over.
func (r *Replica) HandOver(ctx context.Context, to uint64, applied func(context.Context) (uint64, error)) error {
	if _, ok := r.Follows(to); !ok || !r.votes(to) {
		return ErrNotTaken
	}
	began := time.Now()
	if _, err := applied(ctx); err != nil {
		return err
	}
	within := min(max(quietTimeout, 4*time.Since(began)), r.host.attempt())
	before := r.Leader()
	r.hold(true)
	err := r.transferQuietly(ctx, to, within, applied)
	r.hold(false)
	if err != nil {
		return err
	}
	// The vote of one that is far away comes later than Raft waits for it.
	standing, cancel := context.WithTimeoutCause(ctx, r.host.election()/2, ErrNotTaken)
	defer cancel()
	if err := r.until(standing, func() bool { return r.known != before }); err != nil {
		return err
	}
	return r.until(ctx, func() bool { return r.ledElsewhereLocked() && r.applied.term >= r.known.Term })
}

// transferQuietly waits for a moment when nothing is under way, asks dragonboat, and waits
// for as long as that waits for the other.
func (r *Replica) transferQuietly(
	ctx context.Context, to uint64, within time.Duration, applied func(context.Context) (uint64, error),
) error {
	before := r.Leader()
	quiet, cancel := context.WithTimeoutCause(ctx, within, ErrNotTaken)
	defer cancel()
	if err := r.awaitQuiet(quiet, to, applied); err != nil {
		return err
	}
	if err := r.Transfer(to); err != nil {
		return err
	}
	waiting, end := context.WithTimeoutCause(ctx, r.host.election(), ErrNotTaken)
	defer end()
	if err := r.until(waiting, func() bool { return r.known != before }); err != nil && !errors.Is(err, ErrNotTaken) {
		return err
	}
	return nil
}

// awaitQuiet waits for a moment when nothing is under way and the other replica has applied
// all, as long as that may still come.
func (r *Replica) awaitQuiet(ctx context.Context, to uint64, applied func(context.Context) (uint64, error)) error {
	for !r.quiet(ctx, applied) {
		t := time.NewTimer(quietPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
		if _, ok := r.Follows(to); !ok {
			return ErrNotTaken
		}
	}
	return nil
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
