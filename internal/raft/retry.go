package raft

import (
	"context"
	"errors"
	"time"
)

// retryPause lies between two attempts of a call that certainly did not apply.
const retryPause = 2 * time.Millisecond

// Again calls fn, again for as long as its error says that nothing was applied and
// nothing will be. It is for the node that holds the client's call: nobody else may
// send a command again, and each command in fn is a new one.
func Again(ctx context.Context, fn func(context.Context) error) error {
	for {
		err := fn(ctx)
		if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrNotApplied) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// AtLeader is Again while this replica serves: it waits for that before each call.
func (r *Replica) AtLeader(ctx context.Context, fn func(context.Context) error) error {
	return Again(ctx, func(ctx context.Context) error {
		if err := r.AwaitServing(ctx); err != nil {
			return err
		}
		return fn(ctx)
	})
}
