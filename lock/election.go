package lock

import (
	"bytes"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Candidate is who campaigned for an election and leads.
type Candidate struct {
	Place
	Header *pb.ResponseHeader
}

// Campaign returns when the caller's lease leads the election with a value.
func (s *Service) Campaign(ctx context.Context, name []byte, lease int64, value []byte) (Candidate, error) {
	prefix := prefixOf(name)
	e, err := s.enter(ctx, prefix, lease, value)
	if err != nil {
		return Candidate{}, err
	}
	if e.found != nil && written(e.found) {
		return Candidate{}, ErrOtherMode
	}
	if e.found != nil && !bytes.Equal(e.found.Value, value) {
		if _, err := s.Proclaim(ctx, e.Place, value); err != nil {
			s.quit(ctx, e.Place)
			return Candidate{}, err
		}
	}
	if _, err := s.stay(ctx, prefix, &e); err != nil {
		return Candidate{}, err
	}
	return Candidate{e.Place, e.header}, nil
}

// Proclaim changes the value of a leader. A lease of 0 is for the service to grant.
func (s *Service) Proclaim(ctx context.Context, p Place, value []byte) (*pb.ResponseHeader, error) {
	lease, err := s.leased(ctx, p.Lease)
	if err != nil {
		return nil, err
	}
	key := []byte(p.Key)
	resp, err := s.store.Txn(ctx, &pb.TxnRequest{
		Compare: created(key, p.Token),
		Success: []*pb.RequestOp{putOp(&pb.PutRequest{Key: key, Value: value, Lease: lease})},
	})
	switch {
	case err != nil:
		return nil, err
	case !resp.Succeeded:
		return nil, ErrNotLeader
	default:
		return resp.Header, nil
	}
}

// Resign gives the leadership up, or a place in the queue. To resign from a reign that is
// over changes nothing.
func (s *Service) Resign(ctx context.Context, p Place) (*pb.ResponseHeader, error) {
	return s.remove(ctx, []byte(p.Key), p.Token)
}

// Leader returns the leader's key, and the header of the read.
func (s *Service) Leader(ctx context.Context, name []byte) (*mvccpb.KeyValue, *pb.ResponseHeader, error) {
	resp, err := s.store.Range(ctx, oldest(prefixOf(name)))
	switch {
	case err != nil:
		return nil, nil, err
	case len(resp.Kvs) == 0:
		return nil, nil, ErrNoLeader
	default:
		return resp.Kvs[0], resp.Header, nil
	}
}
