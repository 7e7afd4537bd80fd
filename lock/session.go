package lock

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Session is a lease that locks share: with its end they end.
type Session struct {
	Life

	ID int64
}

// ErrNoSession is returned for a session that is not there any more.
var ErrNoSession = errors.New("lock: there is no such session")

// OpenSession grants a session.
func (s *Service) OpenSession(ctx context.Context, ttl time.Duration) (*Session, error) {
	if ttl <= 0 || ttl > MaxTTL {
		return nil, &FieldError{"ttl_ms", "must be above 0 and not too long"}
	}
	began := s.now()
	resp, err := s.store.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds(ttl)})
	if err != nil {
		return nil, err
	}
	return &Session{life(began, resp.TTL), resp.ID}, nil
}

// RenewSession renews a session with all its locks.
func (s *Service) RenewSession(ctx context.Context, id int64) (*Session, error) {
	began := s.now()
	ttl, err := s.renewLease(ctx, id)
	if errors.Is(err, ErrLost) {
		return nil, ErrNoSession
	}
	if err != nil {
		return nil, err
	}
	return &Session{life(began, ttl), id}, nil
}

// CloseSession ends a session with all its locks and places in queues.
func (s *Service) CloseSession(ctx context.Context, id int64) error {
	_, err := s.store.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
	return err
}
