package lock

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// Renew renews the lease of a lock that the client has by a token. ttl is what the lease is
// to have from now on; 0 leaves that as it is. A session keeps its own. ErrNotHolder says that
// the client does not have the lock any more.
func (s *Service) Renew(ctx context.Context, name, client string, token int64, ttl time.Duration) (*Life, error) {
	if err := checkToken(name, client, token); err != nil {
		return nil, err
	}
	if ttl < 0 || ttl > MaxTTL {
		return nil, &FieldError{"extend_time_ms", "is negative or too long"}
	}
	for {
		kv, err := s.find(ctx, name, token)
		if errors.Is(err, errAbsent) {
			err = ErrNotHolder
		}
		if err != nil {
			return nil, err
		}
		e := queue.EntryOf(kv)
		if e.Client != client {
			return nil, ErrNotHolder
		}
		var l *Life
		if want := seconds(ttl); want > 0 && e.Own && want != e.TTL {
			l, err = s.renewFor(ctx, kv, &e, want)
		} else {
			l, err = s.renewPlace(ctx, kv, e.Guard)
		}
		if err != nil || l != nil {
			return l, err
		}
	}
}

// renewPlace renews the lease of a place, and then proves that its key still hangs on it. It
// returns nothing if that has changed.
func (s *Service) renewPlace(ctx context.Context, found *mvccpb.KeyValue, guard *queue.Guard) (*Life, error) {
	began := s.now()
	ttl, err := s.renewLease(ctx, found.Lease)
	if errors.Is(err, ErrLost) {
		return nil, ErrNotHolder
	}
	if err != nil {
		return nil, err
	}
	s.renewGuard(ctx, guard)
	now, err := s.look(ctx, string(found.Key))
	switch {
	case errors.Is(err, errAbsent):
		return nil, ErrNotHolder
	case err != nil:
		return nil, err
	case now.CreateRevision != found.CreateRevision:
		return nil, ErrNotHolder
	case now.Lease != found.Lease:
		return nil, nil
	default:
		l := life(began, ttl)
		return &l, nil
	}
}

// renewFor gives a place a new lease of another time to live. It returns nothing if the place
// has changed meanwhile.
func (s *Service) renewFor(ctx context.Context, found *mvccpb.KeyValue, e *Entry, ttl int64) (*Life, error) {
	began := s.now()
	granted, err := s.store.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl})
	if err != nil {
		return nil, err
	}
	e.TTL = ttl
	old, guard, err := s.renewGuardFor(ctx, e)
	if err != nil {
		s.revoke(ctx, granted.ID)
		return nil, err
	}
	resp, err := s.rewrite(ctx, found, e, granted.ID, guard...)
	if err != nil || !resp.Succeeded {
		if err == nil {
			s.revoke(ctx, granted.ID)
			s.revokeGuard(ctx, e.Guard)
		}
		return nil, err
	}
	s.revoke(ctx, found.Lease)
	s.revokeGuard(ctx, old)
	l := life(began, granted.TTL)
	return &l, nil
}
