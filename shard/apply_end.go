package shard

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// A lease with keys on several shards ends in one transaction over them. Each holds the keys that
// hang on the lease there, and lets nothing more be attached to it: so what is deleted when the
// transaction is settled is what was held. A revocation is that transaction alone. What has expired
// is first marked as ending, in one entry of the lease's home, which is final: a renewal that was
// answered before is seen by the home's leader before it proposes that, and none is after.

// prepareEnd adds to a Prepare what it is for if it is the end of a lease, or says why it is turned
// away: the lease is not there any more, or has keys on shards that the transaction does not know of.
func (r *dataRun) prepareEnd(p *commit.Prepare) error {
	ref := p.End.Lease
	if p.End.IsZero() {
		return nil
	}
	if r.home(ref.ID) {
		switch rec, ok := r.d.leases.OfGrant(ref); {
		case !ok || rec.Ending && !rec.Intact:
			return lease.ErrNotFound
		case rec.Ending && !p.End.Decided:
			return lease.ErrEnding
		case slices.ContainsFunc(r.d.leases.Registered(ref.ID), func(id uint64) bool { return !slices.Contains(p.End.Shards, id) }):
			return ErrAborted
		}
	}
	if r.d.transactions.HoldsLease(ref.ID) {
		return errHeld
	}
	p.Writes = keys.NewSet(points(r.d.leases.KeysOf(ref))...)
	return nil
}

// deletions returns the operations that delete keys, in order.
func deletions(of [][]byte) []mvcc.Placed {
	ops := make([]mvcc.Placed, len(of))
	for i, key := range of {
		ops[i] = mvcc.Placed{
			Place: mvcc.PlaceByKey + uint32(i),
			Op: &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: key},
			}},
		}
	}
	return ops
}

// endHere ends a lease whose keys are deleted here: its home keeps the record until the other
// shards have deleted theirs, so that the id is not granted anew before.
func (r *dataRun) endHere(ref lease.Ref) error {
	if !r.home(ref.ID) {
		_, err := r.d.leases.Drop(r.batch, ref)
		return err
	}
	if _, ok := r.d.leases.OfGrant(ref); !ok {
		return nil
	}
	if err := r.d.leases.SetEnding(r.batch, ref.ID, false); err != nil {
		return err
	}
	r.ending = append(r.ending, ref.ID)
	return nil
}

// forgetLease removes the record of a lease that has no key left anywhere.
func (r *dataRun) forgetLease(ref lease.Ref) error {
	rec, ok := r.d.leases.OfGrant(ref)
	if !ok || !rec.Ending {
		return nil
	}
	if _, err := r.d.leases.Revoke(r.batch, ref.ID); err != nil {
		return err
	}
	r.ended = append(r.ended, ref.ID)
	r.forgotten = true
	return nil
}

// leaseHeld reports whether a transaction holds a lease or one of its keys, so that the lease
// can't end here now.
func (r *dataRun) leaseHeld(id int64) bool {
	if r.d.transactions.HoldsLease(id) {
		return true
	}
	if !r.w.HoldsAny() {
		return false
	}
	return !r.d.leases.Every(id, func(key []byte) bool { return !r.w.Meets(nil, []keys.Span{keys.Point(key)}) })
}
