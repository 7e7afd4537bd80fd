package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/shard"
)

// LeaseGrant grants a lease; an id of 0 lets the server pick one.
func (r *Router) LeaseGrant(ctx context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if req.ID != 0 {
		return r.grant(ctx, req.ID, req.TTL)
	}
	for {
		resp, err := r.grant(ctx, pickLease(), req.TTL)
		if !errors.Is(err, lease.ErrExists) {
			return resp, err
		}
	}
}

// pickLease draws an id that clients can keep in a signed number.
func pickLease() int64 { return 1 + rand.Int64N(1<<63-1) }

func (r *Router) grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	d, err := r.lease(id)
	if err != nil {
		return nil, err
	}
	return write[*pb.LeaseGrantResponse](ctx, r, d, shard.KindLeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: ttl})
}

// LeaseRevoke ends a lease and deletes its keys.
func (r *Router) LeaseRevoke(ctx context.Context, req *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	d, err := r.lease(req.ID)
	if err != nil {
		return nil, err
	}
	return write[*pb.LeaseRevokeResponse](ctx, r, d, shard.KindLeaseRevoke, req)
}

// LeaseRenew renews a lease at the moment of the call.
func (r *Router) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	d, err := r.lease(id)
	if err != nil {
		return nil, err
	}
	resp := &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{Revision: d.Store().Rev()}, ID: id}
	err = r.atLeader(ctx, d, func(ctx context.Context) error {
		resp.TTL, err = d.Renew(ctx, id)
		return err
	})
	return resp, err
}

// LeaseTimeToLive tells what a lease has left, and its keys if asked. There being
// no such lease is lease.ErrNotFound.
func (r *Router) LeaseTimeToLive(ctx context.Context, req *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	d, err := r.lease(req.ID)
	if err != nil {
		return nil, err
	}
	var life shard.LeaseLife
	var found bool
	err = r.atLeader(ctx, d, func(ctx context.Context) error {
		life, found, err = d.TimeToLive(ctx, req.ID, req.Keys)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, lease.ErrNotFound
	}
	return &pb.LeaseTimeToLiveResponse{
		Header:     &pb.ResponseHeader{Revision: d.Store().Rev()},
		ID:         req.ID,
		TTL:        int64(life.Remaining / time.Second),
		GrantedTTL: life.TTL,
		Keys:       life.Keys,
	}, nil
}

// LeaseLeases lists all leases by id.
func (r *Router) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	d, err := r.whole()
	if err != nil {
		return nil, err
	}
	if err := r.confirm(ctx, d); err != nil {
		return nil, err
	}
	resp := &pb.LeaseLeasesResponse{Header: &pb.ResponseHeader{Revision: d.Store().Rev()}}
	for _, rec := range d.Leases() {
		resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: rec.ID})
	}
	return resp, nil
}
