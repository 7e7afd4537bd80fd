package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// kvService is etcd's KV service over a Store.
type kvService struct {
	pb.UnsafeKVServer

	store   Store
	headers headers
	rules   *rules
	admit   *admission
}

var _ pb.KVServer = (*kvService)(nil)

// Range answers from one revision of the keyspace.
func (s *kvService) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, toStatus(err)
	}
	resp, err := s.store.Range(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// RangeStream answers like Range, in chunks of about the size of a large
// request. The last chunk carries header, more and count.
func (s *kvService) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := checkRangeStream(r); err != nil {
		return err
	}
	ctx := stream.Context()
	if ctx.Err() != nil {
		return endOf(ctx)
	}
	err := s.store.RangeStream(ctx, r, s.rules.maxRequestBytes, func(chunk *pb.RangeResponse) error {
		if chunk.Header != nil {
			chunk.Header = s.headers.fill(chunk.Header)
		}
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: chunk})
	})
	if err != nil && ctx.Err() != nil {
		return endOf(ctx)
	}
	return toStatus(err)
}

// Put writes one key.
func (s *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := s.admit.reserve(ctx, costPut(r)); err != nil {
		return nil, err
	}
	if err := s.rules.put(r); err != nil {
		return nil, err
	}
	if err := s.admit.write(ctx, true); err != nil {
		return nil, err
	}
	resp, err := s.store.Put(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// DeleteRange deletes the keys of a range at one revision.
func (s *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := s.rules.deleteRange(r); err != nil {
		return nil, err
	}
	if err := s.admit.write(ctx, false); err != nil {
		return nil, err
	}
	resp, err := s.store.DeleteRange(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// Txn runs a transaction. What reads only is served under every alarm.
func (s *kvService) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	cost := costTxn(r)
	if err := s.admit.reserve(ctx, cost); err != nil {
		return nil, err
	}
	readOnly := isReadOnly(r)
	if err := s.rules.txn(r, readOnly); err != nil {
		return nil, err
	}
	if readOnly {
		if err := ctx.Err(); err != nil {
			return nil, toStatus(err)
		}
	} else if err := s.admit.write(ctx, cost > 0); err != nil {
		return nil, err
	}
	resp, err := s.store.Txn(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// Compact forgets history up to a revision.
func (s *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := s.rules.size(r); err != nil {
		return nil, err
	}
	if err := s.admit.write(ctx, false); err != nil {
		return nil, err
	}
	resp, err := s.store.Compact(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}
