package client

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Session is a lease that locks share. Its methods may run side by side.
//
// A session has a lock once: a second Acquire of a name waits until the first is
// released.
type Session struct {
	c   *Client
	id  clientv3.LeaseID
	ttl time.Duration
	// life ends before the lease can have ended.
	life *lifetime
	// running counts the session's goroutines, which end with life.
	running sync.WaitGroup

	mu sync.Mutex
	// closed says that no goroutine is started any more. Protected by mu.
	closed bool
	// slots are those of the locks that the session has or asks for. Protected by mu.
	slots map[string]*slot
}

// renewals is how often a lease is renewed in its time to live, and retryPause what lies
// between an attempt that failed and the next, at the least.
const (
	renewals   = 3
	retryPause = 50 * time.Millisecond
)

// ID is the session's lease.
func (s *Session) ID() clientv3.LeaseID { return s.id }

// TTL is the lease's time to live, as the server granted it.
func (s *Session) TTL() time.Duration { return s.ttl }

// Left returns for how long the lease certainly lasts if it is not renewed any more.
func (s *Session) Left() time.Duration { return s.life.left() }

// Context is cancelled before the session's lease can have ended; context.Cause tells why.
func (s *Session) Context() context.Context { return s.life }

// Close gives up all locks of the session, and ends their contexts before it asks the server
// to end the lease. Where the server can't be reached the lease ends by itself.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.life.end(ErrClosed)
	s.running.Wait()
	_, err := s.c.etcd.Revoke(ctx, s.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// start runs fn beside, unless the session is closed. It ends with life.
func (s *Session) start(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(fn)
	}
}

// renew renews the lease for as long as it lasts.
func (s *Session) renew() {
	t := time.NewTimer(s.ttl / renewals)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.life.Done():
			return
		}
		sent := s.c.clock()
		ttl, err := s.renewOnce()
		switch {
		case err != nil:
			t.Reset(max(retryPause, s.life.left()/marginParts))
		case ttl <= 0:
			s.life.end(ErrExpired)
			return
		default:
			s.life.renewed(sent, ttl)
			t.Reset(s.ttl / renewals)
		}
	}
}

// renewOnce asks for one renewal. Its answer is the time to live, 0 if there is no such
// lease.
func (s *Session) renewOnce() (ttl time.Duration, err error) {
	ctx, cancel := context.WithTimeout(s.life, s.ttl/renewals)
	defer cancel()
	stream, err := pb.NewLeaseClient(s.c.etcd.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}); err != nil {
		return 0, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// slot is the right of a session to have, or ask for, a lock.
type slot struct {
	taken chan struct{}
	// users have the slot or wait for it. Protected by the session's mu.
	users int
}

// reserve waits until the session may ask for a lock, and returns what gives that back.
func (s *Session) reserve(ctx context.Context, name string, wait bool) (free func(), err error) {
	s.mu.Lock()
	own := s.slots[name]
	if own == nil {
		own = &slot{taken: make(chan struct{}, 1)}
		s.slots[name] = own
	}
	own.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(s.slots, name)
		}
	}
	free = sync.OnceFunc(func() { <-own.taken; leave() })
	select {
	case own.taken <- struct{}{}:
		return free, nil
	default:
	}
	if !wait {
		leave()
		return nil, ErrNotAcquired
	}
	select {
	case own.taken <- struct{}{}:
		return free, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	case <-s.life.Done():
		leave()
		return nil, context.Cause(s.life)
	}
}
