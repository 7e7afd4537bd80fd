package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/shard"
)

// A lease with keys on several shards ends in one transaction over its home and those shards: all
// its keys are deleted at the transaction's revision.

// revokeTogether revokes a lease that may have keys on several shards.
func (r *Router) revokeTogether(ctx context.Context, a access, d *shard.Data, id int64) (*pb.LeaseRevokeResponse, error) {
	for {
		if len(d.Holders(id)) == 0 {
			resp, err := write[shard.Revoked](ctx, r, d, a.command(shard.KindLeaseRevokeHere, &pb.LeaseRevokeRequest{ID: id}, id))
			if err != nil || !resp.Elsewhere {
				return resp.LeaseRevokeResponse, err
			}
		}
		ref, ok := d.LeaseRef(id)
		if !ok {
			continue // this replica has just heard of its end
		}
		rev, err := r.endTogether(ctx, a, d, commit.End{Lease: ref})
		if errors.Is(err, lease.ErrNotFound) {
			if now, ok := d.LeaseRef(id); ok && now != ref {
				continue // it has been granted anew, and this replica had not heard of it
			}
		}
		if err != nil {
			return nil, err
		}
		resp := &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{Revision: rev}}
		r.noteShown(resp.Header)
		return resp, nil
	}
}

// End ends a lease whose end its home has decided, unless it has ended.
func (r *Router) End(ctx context.Context, home uint64, ref lease.Ref) error {
	d := r.shards[home]
	if d == nil {
		return errUnplaced
	}
	_, err := r.endTogether(ctx, access{}, d, commit.End{Lease: ref, Decided: true})
	if errors.Is(err, lease.ErrNotFound) {
		return nil
	}
	return err
}

// EndsTogether reports whether leases with keys on several shards end in transactions: all nodes must
// know how.
func (r *Router) EndsTogether() bool { return r.wideWrites && r.system.State().EndsTogether() }

// endTogether ends a lease in a transaction and returns its revision.
func (r *Router) endTogether(ctx context.Context, a access, home *shard.Data, end commit.End) (int64, error) {
	t := &coordinated{r: r, access: a, home: home, end: end}
	return carryOut(ctx, t, t.endLease)
}

// endLease makes one attempt at the end of a lease.
func (t *coordinated) endLease(ctx context.Context, id commit.ID, open uint64) (int64, error) {
	t.end.Shards = t.home.Holders(t.end.Lease.ID)
	t.participants = []participant{{d: t.home}}
	for _, shardID := range t.end.Shards {
		d := t.r.shards[shardID]
		if d == nil {
			return 0, errUnplaced
		}
		t.participants = append(t.participants, participant{d: d})
	}
	if _, err := t.prepare(ctx, id, open); err != nil {
		return 0, err
	}
	decision := &commit.Decision{ID: id}
	for _, p := range t.participants {
		decision.Shares = append(decision.Shares, commit.Share{ShardID: p.d.Replica().ShardID()})
	}
	return t.decide(ctx, decision)
}
