package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// kvService is etcd's KV service over a Store.
type kvService struct {
	pb.UnsafeKVServer

	store   Store
	headers headers
	rules   *rules
	admit   *admission
	gate    *gate
}

var _ pb.KVServer = (*kvService)(nil)

// Range answers from one revision of the keyspace.
func (s *kvService) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	resp, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.RangeResponse, error) {
		return s.store.Range(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// rangeInShard is Range of keys of one shard, behind a proof of that shard alone.
func (s *kvService) rangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return s.rangeBy(ctx, r, s.store.RangeInShard)
}

// rangeBy answers a range request by read, or with nothing where that does.
func (s *kvService) rangeBy(
	ctx context.Context, r *pb.RangeRequest, read func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error),
) (*pb.RangeResponse, error) {
	resp, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.RangeResponse, error) {
		return read(ctx, r)
	})
	if err != nil || resp == nil {
		return nil, err
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
	_, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.RangeStream(ctx, r, s.rules.maxRequestBytes, func(chunk *pb.RangeResponse) error {
			if chunk.Header != nil {
				chunk.Header = s.headers.fill(chunk.Header)
			}
			return stream.Send(&pb.RangeStreamResponse{RangeResponse: chunk})
		})
	})
	if err != nil && ctx.Err() != nil {
		return endOf(ctx)
	}
	return err
}

// Put writes one key.
func (s *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := s.admit.reserve(ctx, costPut(r)); err != nil {
		return nil, err
	}
	if err := checkPut(r); err != nil {
		return nil, err
	}
	resp, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.PutResponse, error) {
		if err := s.mayWrite(ctx, r, true); err != nil {
			return nil, err
		}
		return s.store.Put(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// DeleteRange deletes the keys of a range at one revision.
func (s *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDeleteRange(r); err != nil {
		return nil, err
	}
	resp, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.DeleteRangeResponse, error) {
		if err := s.mayWrite(ctx, r, false); err != nil {
			return nil, err
		}
		return s.store.DeleteRange(ctx, r)
	})
	if err != nil {
		return nil, err
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
	if err := s.rules.txn(r); err != nil {
		return nil, err
	}
	readOnly := isReadOnly(r)
	resp, err := checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.TxnResponse, error) {
		if !readOnly {
			if err := s.mayWrite(ctx, r, cost > 0); err != nil {
				return nil, err
			}
		}
		return s.store.Txn(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// Compact forgets history up to a revision.
func (s *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	resp, err := checked(ctx, s.gate, needRoot, func(ctx context.Context) (*pb.CompactionResponse, error) {
		if err := s.mayWrite(ctx, r, false); err != nil {
			return nil, err
		}
		return s.store.Compact(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// mayWrite refuses a write that is too large for the log, or that an alarm forbids.
func (s *kvService) mayWrite(ctx context.Context, r proto.Message, grows bool) error {
	if err := s.rules.size(ctx, r); err != nil {
		return err
	}
	return s.admit.write(ctx, grows)
}
