package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// leaseRef names one grant of a lease, and for aging what remains of it. A
// command that was made for an earlier grant of the id does nothing.
type leaseRef struct {
	id          int64
	incarnation uint64
	remaining   time.Duration
}

var errBadLeaseRef = errors.New("malformed lease reference")

// appendLeaseRef writes a reference: three varints.
func appendLeaseRef(dst []byte, r leaseRef) []byte {
	dst = binary.AppendVarint(dst, r.id)
	dst = binary.AppendUvarint(dst, r.incarnation)
	return binary.AppendVarint(dst, int64(r.remaining))
}

// eachLeaseRef calls fn for every reference of a payload.
func eachLeaseRef(payload []byte, fn func(leaseRef) error) error {
	for len(payload) > 0 {
		id, n := binary.Varint(payload)
		if n <= 0 {
			return errBadLeaseRef
		}
		payload = payload[n:]
		incarnation, n := binary.Uvarint(payload)
		if n <= 0 {
			return errBadLeaseRef
		}
		payload = payload[n:]
		remaining, n := binary.Varint(payload)
		if n <= 0 {
			return errBadLeaseRef
		}
		payload = payload[n:]
		if err := fn(leaseRef{id, incarnation, time.Duration(remaining)}); err != nil {
			return err
		}
	}
	return nil
}

func (r *dataRun) grant(req *pb.LeaseGrantRequest, _ mvcc.Opts) (*pb.LeaseGrantResponse, error) {
	if !r.home(req.ID) {
		return nil, errNotOwned
	}
	rec, err := r.d.leases.Grant(r.batch, req.ID, req.TTL)
	if err != nil {
		return nil, err
	}
	r.granted = append(r.granted, rec)
	return &pb.LeaseGrantResponse{Header: r.header(), ID: rec.ID, TTL: rec.TTL}, nil
}

// Revoked is the answer to a revocation.
type Revoked struct {
	*pb.LeaseRevokeResponse
	// Ending says that other shards have still to delete keys of the lease. The header has
	// the revision at which the end was decided.
	Ending bool
	// Elsewhere says that nothing was changed, as other shards may have keys of the lease.
	Elsewhere bool
}

// revokeHere revokes a lease that has no keys on other shards.
func (r *dataRun) revokeHere(req *pb.LeaseRevokeRequest, o mvcc.Opts) (resp Revoked, err error) {
	if len(r.d.leases.Registered(req.ID)) > 0 {
		return Revoked{Elsewhere: true}, nil
	}
	return r.revoke(req, o)
}

func (r *dataRun) revoke(req *pb.LeaseRevokeRequest, o mvcc.Opts) (resp Revoked, err error) {
	if !r.home(req.ID) {
		return resp, errNotOwned
	}
	rec, ok := r.d.leases.Get(req.ID)
	switch {
	case !ok:
		return resp, lease.ErrNotFound
	case rec.Ending:
		return resp, lease.ErrEnding
	case r.leaseHeld(req.ID):
		return resp, errHeld
	}
	resp.Ending = len(r.d.leases.Registered(req.ID)) > 0
	if err := r.end(req.ID, o.Number); err != nil {
		return resp, err
	}
	resp.LeaseRevokeResponse = &pb.LeaseRevokeResponse{Header: r.header()}
	// The number is the command's revision where it deleted no key, too.
	resp.Header.Revision = max(resp.Header.Revision, o.Number)
	return resp, nil
}

// end removes a lease and deletes its keys at one revision, which has the number
// given, if there is one. A lease that may have keys on other shards goes only when
// those have been deleted: until then it is ending, and the leader sees to it.
func (r *dataRun) end(id, number int64) error {
	if len(r.d.leases.Registered(id)) > 0 {
		return r.begin(id, number)
	}
	keys, err := r.d.leases.Revoke(r.batch, id)
	if err != nil {
		return err
	}
	r.ended = append(r.ended, id)
	return r.deleteKeys(id, number, keys)
}

// begin decides the end of a lease and deletes those of its keys that lie here.
func (r *dataRun) begin(id, number int64) error {
	if err := r.d.leases.SetEnding(r.batch, id, false); err != nil {
		return err
	}
	r.ending = append(r.ending, id)
	return r.deleteKeys(id, number, r.d.leases.Keys(id))
}

func (r *dataRun) deleteKeys(id, number int64, keys [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	if _, _, err := r.w.DeleteKeys(keys, mvcc.Opts{Number: number}); err != nil {
		return fmt.Errorf("delete keys of lease %d: %w", id, err)
	}
	return nil
}

// current reports whether the lease is still the grant that the command means.
func (r *dataRun) current(ref leaseRef) bool {
	rec, ok := r.d.leases.OfGrant(lease.Ref{ID: ref.id, Incarnation: ref.incarnation})
	return ok && !rec.Ending
}

// expire ends leases whose time has passed, each at a revision of its own, and
// returns those that it ended. What a transaction holds does not end now. Together says
// that those with keys on other shards are only marked.
func (r *dataRun) expire(c raft.Command, together bool) ([]int64, error) {
	var ended []int64
	err := eachNumberedRef(c, func(ref leaseRef, number int64) error {
		if !r.current(ref) || r.leaseHeld(ref.id) {
			return nil
		}
		ended = append(ended, ref.id)
		r.expired++
		if together && len(r.d.leases.Registered(ref.id)) > 0 {
			r.ending = append(r.ending, ref.id)
			return r.d.leases.SetEnding(r.batch, ref.id, true)
		}
		return r.end(ref.id, number)
	})
	return ended, err
}

// eachNumberedRef calls fn for every reference of a command with the number that is
// the reference's own, 0 where the shard counts by itself.
func eachNumberedRef(c raft.Command, fn func(ref leaseRef, number int64) error) error {
	next := c.Number
	return eachLeaseRef(c.Payload, func(ref leaseRef) error {
		number := next
		if number != 0 {
			next++
		}
		return fn(ref, number)
	})
}

func (r *dataRun) aging(payload []byte) error {
	return eachLeaseRef(payload, func(ref leaseRef) error {
		if !r.current(ref) {
			return nil
		}
		return r.d.leases.SetAging(r.batch, ref.id, ref.remaining)
	})
}

func (r *dataRun) fresh(payload []byte) error {
	return eachLeaseRef(payload, func(ref leaseRef) error {
		if !r.current(ref) {
			return lease.ErrNotFound
		}
		return r.d.leases.SetFresh(r.batch, ref.id)
	})
}
