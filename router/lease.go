package router

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

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
	return write[*pb.LeaseGrantResponse](ctx, r, d,
		command{kind: shard.KindLeaseGrant, request: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
}

// LeaseRevoke ends a lease and deletes its keys.
func (r *Router) LeaseRevoke(ctx context.Context, req *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	d, err := r.lease(req.ID)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	return write[*pb.LeaseRevokeResponse](ctx, r, d, a.command(shard.KindLeaseRevoke, req, req.ID))
}

// LeaseRenew renews a lease at the moment of the call.
func (r *Router) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	d, err := r.lease(id)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.everyKey(d, id, a.users.Write); err != nil {
		return nil, err
	}
	resp := &pb.LeaseKeepAliveResponse{Header: r.header(), ID: id}
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
	a, err := r.access(ctx)
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
	if err := a.attached(d, life.Keys); err != nil {
		return nil, err
	}
	return &pb.LeaseTimeToLiveResponse{
		Header:     r.header(),
		ID:         req.ID,
		TTL:        int64(life.Remaining / time.Second),
		GrantedTTL: life.TTL,
		Keys:       life.Keys,
	}, nil
}

// attached reports whether the sender may hear of the keys of a lease.
func (a access) attached(d *shard.Data, keys [][]byte) error {
	if a.users.Admin(a.id) == nil || len(keys) == 0 {
		return nil
	}
	for _, key := range keys {
		if err := a.users.Read(a.id, key, nil); err != nil {
			return err
		}
	}
	if d.Fence().Epoch > a.users.Epoch {
		return ErrOutdated
	}
	return nil
}

// LeaseLeases lists all leases by id, to those who may read all keys of all leases.
func (r *Router) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	g, confirming := errgroup.WithContext(ctx)
	for _, d := range r.shards {
		g.Go(func() error { return r.confirm(confirming, d) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.LeaseLeasesResponse{Header: r.header()}
	for _, d := range r.shards {
		for _, rec := range d.Leases() {
			if err := a.everyKey(d, rec.ID, a.users.Read); err != nil {
				return nil, err
			}
			resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: rec.ID})
		}
	}
	slices.SortFunc(resp.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	return resp, nil
}

// header is that of a lease's answer: a revision that was issued, which may lag.
func (r *Router) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: r.Revision()} }
