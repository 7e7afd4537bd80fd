package shard

import (
	"context"
	"errors"
	"time"
)

// retryPause lies between two attempts of a call that certainly did not apply.
const retryPause = 2 * time.Millisecond

// AtLeader calls fn once this replica serves, and again for as long as fn's
// error says that nothing was applied and nothing will be. It is for the node
// that holds the client's call: nobody else may send a command again, and each
// Propose in fn is a new command.
func (r *Replica) AtLeader(ctx context.Context, fn func(context.Context) error) error {
	for {
		err := r.AwaitServing(ctx)
		if err == nil {
			err = fn(ctx)
		}
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
