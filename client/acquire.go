package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// Acquire returns when the session has the lock. It waits for as long as ctx lets it, in the
// order of asking with everybody else. A DeadlockError says that its turn would never come. When it
// fails, the session's place in the queue is given up, if need be behind the call.
func (s *Session) Acquire(ctx context.Context, name string, opts ...Option) (*Grant, error) {
	return s.acquire(ctx, name, true, opts)
}

// TryAcquire is Acquire that does not wait: where somebody else has the lock, or waits for
// it, it returns ErrNotAcquired.
func (s *Session) TryAcquire(ctx context.Context, name string, opts ...Option) (*Grant, error) {
	return s.acquire(ctx, name, false, opts)
}

// place is a session's place in a queue, whose turn has come.
type place struct {
	token int64
	// rev is the revision of the state in which it had.
	rev int64
}

func (s *Session) acquire(ctx context.Context, name string, wait bool, opts []Option) (*Grant, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return s.acquireBy(ctx, name, wait, func(ctx context.Context) (place, error) { return s.take(ctx, name, wait, o) })
}

// acquireBy has take get the session a place whose turn has come.
func (s *Session) acquireBy(ctx context.Context, name string, wait bool, take func(context.Context) (place, error)) (*Grant, error) {
	if name == "" {
		return nil, fmt.Errorf("%w: the lock has no name", ErrOption)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	defer stop()
	free, err := s.reserve(ctx, name, wait)
	if err != nil {
		return nil, err
	}
	p, err := take(ctx)
	if err == nil && s.life.Err() != nil {
		err = context.Cause(s.life)
	}
	if err != nil {
		s.start(func() { s.abandon(name, free) })
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return s.newGrant(name, s.key(name), p.token, p.rev, free), nil
}

// key is that of the session's place in a queue, as etcd's recipes name it.
func (s *Session) key(name string) string { return fmt.Sprintf("%s/%x", name, int64(s.id)) }

// abandon gives up a place that there may be, whatever became of the call, before the session asks for
// the lock again.
func (s *Session) abandon(name string, free func()) {
	for {
		_, err := s.c.etcd.Delete(s.life, s.key(name))
		if err == nil {
			free()
			return
		}
		if pause(s.life) != nil {
			return // the place goes with the lease
		}
	}
}

// take asks the lock service, or the keys where there is none.
func (s *Session) take(ctx context.Context, name string, wait bool, o *options) (place, error) {
	if !s.c.plain.Load() {
		p, err := s.askService(ctx, name, wait, o)
		if status.Code(err) != codes.Unimplemented {
			return p, err
		}
		s.c.plain.Store(true)
	}
	return s.line(ctx, name, wait, o)
}

// maxBlock is as long as a server lets a call wait.
const maxBlock = 365 * 24 * time.Hour

// askService acquires through the lock service, with the same request while the answer is lost.
func (s *Session) askService(ctx context.Context, name string, wait bool, o *options) (place, error) {
	r := &latchkeyv1.AcquireRequest{
		LockKey: name, ClientId: o.client, SessionId: int64(s.id), RequestId: rand.Text(),
		Permits: int32(o.permits), Of: int32(o.of), Metadata: o.metadata,
	}
	if o.of > math.MaxInt32 {
		return place{}, ErrOption
	}
	if o.shared {
		r.Mode = latchkeyv1.Mode_SHARED
	}
	if wait {
		r.BlockTimeMs = maxBlock.Milliseconds()
	}
	for {
		resp, err := s.c.locks.Acquire(ctx, r)
		switch {
		case err == nil && resp.Acquired && len(resp.Grants) == 1:
			return place{resp.Grants[0].FencingToken, resp.Revision}, nil
		case err == nil && !wait:
			return place{}, ErrNotAcquired
		case err != nil && status.Code(err) != codes.Unavailable:
			return place{}, deadlockOr(err)
		}
		if err := pause(ctx); err != nil {
			return place{}, err
		}
	}
}
