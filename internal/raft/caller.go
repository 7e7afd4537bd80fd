package raft

import (
	"context"
	"errors"
	"time"
)

// retryPause lies between two attempts of a call that certainly did not apply.
const retryPause = 2 * time.Millisecond

// Caller makes the calls that only a shard's leader, an L, can answer. It is for the node that
// holds the client's call: nobody else may make one again, and each command in a call is a new
// one.
type Caller[L any] struct {
	// Replica is this node's, and Here the leader that it is while it serves.
	Replica *Replica
	Here    L
	// Elsewhere returns the leader on another node as far as this one knows, false if there is
	// none; nil where there are no other nodes.
	Elsewhere func() (L, bool)
	// Timeout bounds Call and UpTo. What ends by it ends with ErrTimeout.
	Timeout time.Duration
}

// Leader returns the leader that this node knows, false if there is none.
func (c *Caller[L]) Leader() (l L, ok bool) {
	switch {
	case c.Replica.Serving() != 0:
		return c.Here, true
	case c.Elsewhere != nil:
		return c.Elsewhere()
	}
	return l, false
}

// Again calls fn with the leader, again for as long as the error says that nothing was applied
// and nothing will be, until ctx ends. It waits while there is no leader.
func (c *Caller[L]) Again(ctx context.Context, fn func(context.Context, L) error) error {
	for {
		err := c.once(ctx, fn)
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

func (c *Caller[L]) once(ctx context.Context, fn func(context.Context, L) error) error {
	await := c.Replica.AwaitServing
	if c.Elsewhere != nil {
		await = c.Replica.AwaitLeader
	}
	if err := await(ctx); err != nil {
		return err
	}
	l, ok := c.Leader()
	if !ok {
		return ErrNotLeader
	}
	return fn(ctx, l)
}

// Call is Again within the timeout.
func (c *Caller[L]) Call(ctx context.Context, fn func(context.Context, L) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
	defer cancel()
	return c.Again(ctx, fn)
}

// UpTo is Call, and returns when this node's replica has applied the entry at the index that fn
// returned.
func (c *Caller[L]) UpTo(ctx context.Context, fn func(context.Context, L) (index uint64, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
	defer cancel()
	var index uint64
	err := c.Again(ctx, func(ctx context.Context, l L) (err error) {
		index, err = fn(ctx, l)
		return err
	})
	if err != nil {
		return err
	}
	return c.Replica.AwaitApplied(ctx, index)
}
