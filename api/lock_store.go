package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/lock"
)

// lockStore is what locks stand on: the services that clients are served by, so that every
// request is validated, admitted and checked as theirs are.
type lockStore struct {
	kv    *kvService
	lease *leaseService
	// watches are this node's.
	watches Watches
}

var (
	_ lock.Store = lockStore{}
	_ lock.Node  = lockStore{}
)

// Txn runs a transaction.
func (s lockStore) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return s.kv.Txn(ctx, r)
}

// Range reads keys.
func (s lockStore) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return s.kv.Range(ctx, r)
}

// RangeInShard reads keys of one shard.
func (s lockStore) RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return s.kv.rangeInShard(ctx, r)
}

// DeleteRange deletes keys.
func (s lockStore) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return s.kv.DeleteRange(ctx, r)
}

// LeaseGrant grants a lease.
func (s lockStore) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return s.lease.LeaseGrant(ctx, r)
}

// LeaseRevoke ends a lease with its keys.
func (s lockStore) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return s.lease.LeaseRevoke(ctx, r)
}

// LeaseRenew renews a lease.
func (s lockStore) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	return s.lease.renew(ctx, id)
}

// LeaseRenewAhead renews a lease, and leaves the proof to what is applied later.
func (s lockStore) LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
	ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
) {
	passed, err := checked(ctx, s.lease.gate, needUser, func(ctx context.Context) (
		read func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
	) {
		ttl, read, err = s.kv.store.LeaseRenewAhead(ctx, id, key)
		return read, err
	})
	return ttl, func(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
		return s.kv.rangeBy(ctx, r, passed)
	}, err
}

// LeaseTimeToLive tells what a lease has left.
func (s lockStore) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return s.lease.LeaseTimeToLive(ctx, r)
}

// Divided reports whether keys lie on several shards.
func (s lockStore) Divided(key, end []byte) bool { return s.kv.store.Divided(key, end) }

// Peek reads keys as this node knows them.
func (s lockStore) Peek(ctx context.Context, r *pb.RangeRequest, least int64) (*pb.RangeResponse, error) {
	return s.kv.store.Peek(ctx, r, least)
}

// Prove reads keys of one shard, behind a proof of that shard, for the server itself.
func (s lockStore) Prove(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return s.kv.store.RangeInShard(auth.With(ctx, auth.Server), r)
}

// Watchers returns watchers of this node.
func (s lockStore) Watchers() lock.Watchers { return s.watches.NewWatchGroup() }
