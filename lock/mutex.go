package lock

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// Held is a lock that its caller has, as a call of etcd's Lock service answers it.
type Held struct {
	Place
	Header *pb.ResponseHeader
}

// Lock returns when the caller's lease has the lock. A lease of 0 is for the service to
// grant.
func (s *Service) Lock(ctx context.Context, name []byte, lease int64) (Held, error) {
	prefix := prefixOf(name)
	e, err := s.enter(ctx, prefix, lease, nil)
	if err != nil {
		return Held{}, err
	}
	if e.found != nil {
		if there := queue.EntryOf(e.found); there.Sharable() {
			return Held{}, ErrOtherMode
		}
	}
	header, err := s.stay(ctx, prefix, &e)
	if err != nil {
		return Held{}, err
	}
	return Held{e.Place, header}, nil
}

// Unlock deletes a key: a lock is given up so, or a place in its queue.
func (s *Service) Unlock(ctx context.Context, key []byte) (*pb.ResponseHeader, error) {
	resp, err := s.store.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
	if err != nil {
		return nil, err
	}
	return resp.Header, nil
}
