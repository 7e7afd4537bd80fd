package lock

import (
	"context"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// newGuard grants the lease of a guard and returns the guard of a place with a key.
func (s *Service) newGuard(ctx context.Context, e *Entry, key string) (*queue.Guard, error) {
	granted, err := s.store.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: e.TTL + e.Delay})
	if err != nil {
		return nil, err
	}
	return &queue.Guard{Key: key + "-" + strconv.FormatInt(granted.ID, 16), Lease: granted.ID}, nil
}

// putGuard is the operation that makes the guard's key, or hangs it on the guard's lease.
func putGuard(g *queue.Guard) *pb.RequestOp {
	says := Entry{Mode: Exclusive, Guards: true}
	return putOp(&pb.PutRequest{Key: []byte(g.Key), Value: says.Value(), Lease: g.Lease})
}

// renewGuard renews the lease of a guard, after that of its place, so that it outlives that by
// the delay.
func (s *Service) renewGuard(ctx context.Context, g *queue.Guard) {
	if g != nil {
		// One that is gone was so long after its place.
		_, _ = s.renewLease(ctx, g.Lease)
	}
}

// revokeGuard ends the lease of a guard, and so the guard.
func (s *Service) revokeGuard(ctx context.Context, g *queue.Guard) {
	if g != nil {
		s.revoke(ctx, g.Lease)
	}
}

// renewGuardFor gives the guard of a place, if it has one, a lease of the time that the place
// is to have. It returns the guard as it was, and what hangs its key on the new lease: that
// key, as old as the place, is what stands behind it in the queue.
func (s *Service) renewGuardFor(ctx context.Context, e *Entry) (old *queue.Guard, made []*pb.RequestOp, err error) {
	if e.Guard == nil {
		return nil, nil, nil
	}
	renewed, err := s.newGuard(ctx, e, "")
	if err != nil {
		return nil, nil, err
	}
	old, renewed.Key = e.Guard, e.Guard.Key
	e.Guard = renewed
	return old, []*pb.RequestOp{putGuard(renewed)}, nil
}
