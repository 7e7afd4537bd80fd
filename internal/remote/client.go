package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// Mesh hands requests to other nodes. Errors are those of peer.Mesh.
type Mesh interface {
	Call(ctx context.Context, node uint64, request []byte) (answer []byte, err error)
}

// client makes calls of a shard's leader on another node.
type client struct {
	mesh Mesh
	node uint64
	// over ends when this node's replica hears of the leader of a later term.
	over context.Context //nolint:containedctx // lives as long as the term is thought to
}

// roundTrip makes one call. One that may be repeated is given up when the term is over,
// since a node that stands still answers nothing. It is not while no leader is known: where
// links are late a node misses its leader now and then, and no call would ever end.
func (l *client) roundTrip(ctx context.Context, repeatable bool, request []byte) (reader, error) {
	if repeatable {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(l.over, func() { cancel(raft.ErrNotLeader) })
		defer stop()
	}
	answer, err := l.mesh.Call(ctx, l.node, request)
	switch {
	case errors.Is(err, peer.ErrUnsent), errors.Is(err, peer.ErrLost) && repeatable:
		return reader{}, raft.ErrNotLeader
	case errors.Is(err, peer.ErrLost):
		return reader{}, raft.ErrTimeout
	case err != nil:
		return reader{}, err
	}
	result, err := open(answer)
	switch {
	case err == nil:
	case repeatable && cutShort(err):
		err = raft.ErrNotLeader
	case !repeatable && (cutShort(err) || errors.Is(err, errMalformed) || errors.As(err, new(failure))):
		err = openOutcome(err)
	}
	return reader{rest: result}, err
}

// cutShort reports whether a leader gave a call up without knowing what becomes of it. The
// contexts are the leader's: this node's call has not ended.
func cutShort(err error) bool {
	return errors.Is(err, raft.ErrStopped) || errors.Is(err, raft.ErrTimeout) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// openOutcome is for a call that must not be repeated, after an error that does not say that
// nothing was proposed: one without a name may come from anywhere.
func openOutcome(err error) error { return fmt.Errorf("%w (%v)", raft.ErrTimeout, err) } //nolint:errorlint // the cause is the leader's
