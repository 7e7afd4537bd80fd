package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

const (
	// defaultListed is how many locks a page has where the client does not say.
	defaultListed = 100
	// remainingAtATime bounds the leases that one Get asks for at a time.
	remainingAtATime = 16
)

// locksService is the Locks service.
type locksService struct {
	latchkeyv1.UnsafeLocksServer

	locks   *lock.Service
	streams *streams
}

var _ latchkeyv1.LocksServer = (*locksService)(nil)

// locking makes a call, which may wait as long as streams run and ends with the server as they
// do.
func locking[Response any](ctx context.Context, s *locksService, call func(context.Context) (Response, error)) (resp Response, err error) {
	ctx, done, err := s.streams.open(ctx, false)
	if err != nil {
		return resp, err
	}
	defer done()
	resp, err = call(ctx)
	var d *lock.DeadlockError
	switch {
	case err != nil && ctx.Err() != nil:
		err = endOf(ctx)
	case errors.As(err, &d):
		err = deadlocked(s.deadlock(d))
	}
	return resp, lockStatus(err)
}

// Acquire returns when the client has what it asked for, or its time is over.
func (s *locksService) Acquire(ctx context.Context, r *latchkeyv1.AcquireRequest) (*latchkeyv1.AcquireResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.AcquireResponse, error) { return s.acquire(ctx, r, nil) })
}

// AcquireStream is Acquire that tells the position.
func (s *locksService) AcquireStream(
	r *latchkeyv1.AcquireRequest, stream grpc.ServerStreamingServer[latchkeyv1.AcquireProgress],
) error {
	_, err := locking(stream.Context(), s, func(ctx context.Context) (struct{}, error) {
		// A stream that fails is one whose context ends.
		resp, err := s.acquire(ctx, r, func(name string, p lock.Position) {
			_ = stream.Send(&latchkeyv1.AcquireProgress{Step: &latchkeyv1.AcquireProgress_Position{
				Position: &latchkeyv1.Position{LockKey: name, Position: int32(p.Before), Revision: p.Revision},
			}})
		})
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, stream.Send(&latchkeyv1.AcquireProgress{Step: &latchkeyv1.AcquireProgress_Response{Response: resp}})
	})
	return err
}

func (s *locksService) acquire(
	ctx context.Context, r *latchkeyv1.AcquireRequest, moved func(string, lock.Position),
) (*latchkeyv1.AcquireResponse, error) {
	asked, err := asked(r)
	if err != nil {
		return nil, err
	}
	asked.Moved = moved
	var grants []*lock.Grant
	if len(r.GetKeys()) > 0 {
		grants, err = s.locks.AcquireAll(ctx, r.GetKeys(), asked)
	} else {
		var g *lock.Grant
		g, err = s.locks.Acquire(ctx, asked)
		grants = []*lock.Grant{g}
	}
	var late *lock.NotGrantedError
	if errors.As(err, &late) {
		return &latchkeyv1.AcquireResponse{
			LockKey: late.Queue.Name, Position: int32(late.Position), Holders: s.places(late.Queue.Holders()), Revision: late.Queue.Revision,
		}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &latchkeyv1.AcquireResponse{Acquired: true}
	for _, g := range grants {
		resp.Grants = append(resp.Grants, grantMessage(g))
		resp.Revision = max(resp.Revision, g.Revision)
	}
	return resp, nil
}

// asked returns what a message asks for.
func asked(r *latchkeyv1.AcquireRequest) (*lock.Request, error) {
	if r.GetLockKey() != "" && len(r.GetKeys()) > 0 {
		return nil, &lock.FieldError{Field: "keys", Reason: "are in place of lock_key, not beside it"}
	}
	asked := &lock.Request{
		Name: r.GetLockKey(), Client: r.GetClientId(), ID: r.GetRequestId(), Session: r.GetSessionId(),
		TTL: millis(r.GetLeaseTimeMs()), Wait: millis(r.GetBlockTimeMs()), Delay: millis(r.GetLockDelayMs()),
		Permits: int(r.GetPermits()), Of: int(r.GetOf()), Metadata: r.GetMetadata(),
	}
	var ok bool
	if asked.Mode, ok = modeNames[r.GetMode()]; !ok {
		return nil, errMode
	}
	return asked, nil
}

// millis returns so many milliseconds, or as many as there can be.
func millis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(ms, most))) * time.Millisecond
}

// Renew extends the time of a lock.
func (s *locksService) Renew(ctx context.Context, r *latchkeyv1.RenewRequest) (*latchkeyv1.RenewResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.RenewResponse, error) {
		l, err := s.locks.Renew(ctx, r.GetLockKey(), r.GetClientId(), r.GetFencingToken(), millis(r.GetExtendTimeMs()))
		if err != nil {
			return nil, err
		}
		return &latchkeyv1.RenewResponse{LeaseTimeMs: l.TTL.Milliseconds(), NewExpiresAtEpochMs: int64(l.Expires)}, nil
	})
}

// Release gives a lock back.
func (s *locksService) Release(ctx context.Context, r *latchkeyv1.ReleaseRequest) (*latchkeyv1.ReleaseResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.ReleaseResponse, error) {
		err := s.locks.Release(ctx, r.GetLockKey(), r.GetClientId(), r.GetFencingToken(), r.GetRequestId())
		return &latchkeyv1.ReleaseResponse{}, err
	})
}

// Validate tells whether a token is a holder's.
func (s *locksService) Validate(ctx context.Context, r *latchkeyv1.ValidateRequest) (*latchkeyv1.ValidateResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.ValidateResponse, error) {
		valid, holders, err := s.locks.Validate(ctx, r.GetLockKey(), r.GetFencingToken())
		if err != nil {
			return nil, err
		}
		return &latchkeyv1.ValidateResponse{Valid: valid, Holders: s.places(holders)}, nil
	})
}

// Get tells who has a lock and who waits for it.
func (s *locksService) Get(ctx context.Context, r *latchkeyv1.GetRequest) (*latchkeyv1.Lock, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.Lock, error) {
		q, err := s.locks.Get(ctx, r.GetLockKey())
		if err != nil {
			return nil, err
		}
		l := &latchkeyv1.Lock{
			LockKey: q.Name, Revision: q.Revision, Holders: s.places(q.Holders()), Waiters: s.places(q.Waiters()),
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(remainingAtATime)
		remaining := func(p lock.Place, ms *int64) {
			g.Go(func() error {
				left, err := s.locks.Remaining(ctx, p)
				*ms = left.Milliseconds()
				return err
			})
		}
		for i, h := range q.Holders() {
			remaining(h.Place, &l.Holders[i].RemainingMs)
		}
		if q.Delayed != nil {
			remaining(*q.Delayed, &l.DelayedMs)
		}
		return l, g.Wait()
	})
}

// List tells of locks, in pages.
func (s *locksService) List(ctx context.Context, r *latchkeyv1.ListRequest) (*latchkeyv1.ListResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.ListResponse, error) {
		// A cursor may be a name, and not every name is text.
		cursor, err := base64.RawURLEncoding.DecodeString(r.GetCursor())
		if err != nil {
			return nil, &lock.FieldError{Field: "cursor", Reason: "is none of a page"}
		}
		page, err := s.locks.List(ctx, &lock.ListRequest{
			Prefix: r.GetPrefix(), Limit: cmp.Or(int(r.GetLimit()), defaultListed), Cursor: string(cursor), ByWaiters: r.GetByWaiters(),
		})
		if err != nil {
			return nil, err
		}
		resp := &latchkeyv1.ListResponse{Cursor: base64.RawURLEncoding.EncodeToString([]byte(page.Cursor)), Revision: page.Revision}
		for _, l := range page.Locks {
			resp.Locks = append(resp.Locks, &latchkeyv1.LockSummary{
				LockKey: utf8Text(l.Name), Holders: s.places(l.Holders), Waiters: int32(l.Waiters),
			})
		}
		return resp, nil
	})
}

// Watch tells what happens to a lock.
func (s *locksService) Watch(r *latchkeyv1.WatchRequest, stream grpc.ServerStreamingServer[latchkeyv1.WatchResponse]) error {
	_, err := locking(stream.Context(), s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.locks.Watch(ctx, r.GetLockKey(), r.GetFromRevision(), func(rev int64, events []lock.Event) error {
			resp := &latchkeyv1.WatchResponse{Revision: rev}
			for i := range events {
				ev := &events[i]
				resp.Events = append(resp.Events, &latchkeyv1.LockEvent{
					Kind: eventKinds[ev.Kind], Place: s.place(&ev.Place, &ev.Entry), Reason: ev.Reason,
				})
			}
			return stream.Send(resp)
		})
	})
	return err
}

// ForceRelease takes a lock from its holder, or a place from who waits.
func (s *locksService) ForceRelease(
	ctx context.Context, r *latchkeyv1.ForceReleaseRequest,
) (*latchkeyv1.ForceReleaseResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.ForceReleaseResponse, error) {
		err := s.locks.ForceRelease(ctx, r.GetLockKey(), r.GetFencingToken(), r.GetReason())
		return &latchkeyv1.ForceReleaseResponse{}, err
	})
}

// OpenSession grants a session.
func (s *locksService) OpenSession(ctx context.Context, r *latchkeyv1.OpenSessionRequest) (*latchkeyv1.Session, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.Session, error) {
		if len(r.GetClientId()) > lock.MaxClient {
			return nil, &lock.FieldError{Field: "client_id", Reason: "is too long"}
		}
		return sessionMessage(s.locks.OpenSession(ctx, millis(r.GetTtlMs())))
	})
}

// RenewSession renews a session.
func (s *locksService) RenewSession(ctx context.Context, r *latchkeyv1.RenewSessionRequest) (*latchkeyv1.Session, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.Session, error) {
		if err := checkSession(r.GetSessionId()); err != nil {
			return nil, err
		}
		return sessionMessage(s.locks.RenewSession(ctx, r.GetSessionId()))
	})
}

// CloseSession ends a session with its locks. One that is not there any more is closed.
func (s *locksService) CloseSession(
	ctx context.Context, r *latchkeyv1.CloseSessionRequest,
) (*latchkeyv1.CloseSessionResponse, error) {
	return locking(ctx, s, func(ctx context.Context) (*latchkeyv1.CloseSessionResponse, error) {
		if err := checkSession(r.GetSessionId()); err != nil {
			return nil, err
		}
		err := s.locks.CloseSession(ctx, r.GetSessionId())
		if errors.Is(err, errLeaseNotFound) {
			err = nil
		}
		return &latchkeyv1.CloseSessionResponse{}, err
	})
}

func checkSession(id int64) error {
	if id <= 0 {
		return &lock.FieldError{Field: "session_id", Reason: "is none"}
	}
	return nil
}
