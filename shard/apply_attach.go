package shard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// verdict is what the home of a lease has said of it.
type verdict struct {
	id int64
	// incarnation is that of the lease, 0 if the home knows none.
	incarnation uint64
}

// errUndecided turns away a command that uses a lease of which it brings no verdict.
var errUndecided = fmt.Errorf("%w: it uses a lease that the shard does not know", raft.ErrNotApplied)

// unknownLeaseError turns away a command that uses, where it goes, a lease that its home
// did not know when it was asked.
type unknownLeaseError struct{ id int64 }

func (e unknownLeaseError) Error() string {
	return fmt.Sprintf("%v: its home did not know lease %d", raft.ErrNotApplied, e.id)
}

func (unknownLeaseError) Unwrap() error { return raft.ErrNotApplied }

var errBadVerdicts = errors.New("malformed verdicts")

// appendVerdicts writes what goes before an attached command's own kind and payload.
func appendVerdicts(dst []byte, verdicts []verdict) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(verdicts)))
	for _, v := range verdicts {
		dst = binary.AppendVarint(dst, v.id)
		dst = binary.AppendUvarint(dst, v.incarnation)
	}
	return dst
}

// cutVerdicts reads what appendVerdicts wrote and returns what follows.
func cutVerdicts(src []byte) (verdicts []verdict, rest []byte, err error) {
	count, n := binary.Uvarint(src)
	if n <= 0 || count > uint64(len(src)) {
		return nil, nil, errBadVerdicts
	}
	src = src[n:]
	for range count {
		var v verdict
		if v.id, n = binary.Varint(src); n <= 0 {
			return nil, nil, errBadVerdicts
		}
		src = src[n:]
		if v.incarnation, n = binary.Uvarint(src); n <= 0 {
			return nil, nil, errBadVerdicts
		}
		src = src[n:]
		verdicts = append(verdicts, v)
	}
	return verdicts, src, nil
}

// attached applies a command with what it brings of leases that are kept elsewhere.
func (r *dataRun) attached(c raft.Command, want bool) (result any, rejected, failed error) {
	verdicts, rest, err := cutVerdicts(c.Payload)
	if err != nil {
		return nil, nil, err
	}
	if len(rest) == 0 {
		return nil, nil, errBadVerdicts
	}
	if Kind(rest[0]) != KindPut && Kind(rest[0]) != KindTxn {
		return nil, nil, fmt.Errorf("verdicts for a command of kind %d: %w", rest[0], keys.ErrNewer)
	}
	r.verdicts = verdicts
	c.Kind, c.Payload = raft.Kind(rest[0]), rest[1:]
	return r.command(c, want)
}

// runLeases is the leases as the keys' writer sees them. It asks only for those that
// the running command uses where it goes.
type runLeases struct{ r *dataRun }

// Exists reports whether keys may hang on lease id, be it because of what the running
// command brings.
func (l runLeases) Exists(id int64) bool {
	r := l.r
	switch {
	case r.d.transactions.Ends(id) || r.d.intact(id):
		r.undecided = errHeld // until it has ended, its keys with it
		return false
	case r.d.leases.Exists(id):
		return true
	case r.home(id):
		return false
	}
	for _, v := range r.verdicts {
		switch {
		case v.id != id:
		case v.incarnation == 0:
			r.undecided = unknownLeaseError{id}
			return false
		default:
			return r.d.leases.MayMakeShadow(lease.Ref{ID: id, Incarnation: v.incarnation})
		}
	}
	r.undecided = errUndecided
	return false
}

// Attach hangs key on lease id, of which Exists was true, and makes its shadow if
// there is none.
func (l runLeases) Attach(id int64, key []byte) {
	r := l.r
	if !r.d.leases.Holds(id) {
		for _, v := range r.verdicts {
			if v.id == id {
				r.failed = errors.Join(r.failed, r.d.leases.MakeShadow(r.batch, lease.Ref{ID: id, Incarnation: v.incarnation}))
			}
		}
	}
	if r.failed == nil {
		r.d.leases.Attach(id, key)
	}
}

// Detach takes key off lease id.
func (l runLeases) Detach(id int64, key []byte) { l.r.d.leases.Detach(id, key) }

// register notes that another shard may have keys of a lease and returns the lease's
// incarnation.
func (r *dataRun) register(payload []byte) (uint64, error) {
	id, n := binary.Varint(payload)
	if n <= 0 {
		return 0, errBadLeaseRef
	}
	shardID, m := binary.Uvarint(payload[n:])
	if m <= 0 {
		return 0, errBadLeaseRef
	}
	if n+m != len(payload) {
		return 0, fmt.Errorf("registration of %d bytes: %w", len(payload), keys.ErrNewer)
	}
	switch {
	case !r.home(id):
		return 0, errNotOwned
	case r.d.transactions.Ends(id) || r.d.intact(id):
		return 0, errHeld
	}
	return r.d.leases.Register(r.batch, id, shardID)
}

// drop deletes the keys of leases whose end their homes have decided, those of each at
// a revision of its own. It returns how many it has left, as a transaction holds them.
func (r *dataRun) drop(c raft.Command) (left int, err error) {
	return left, eachNumberedRef(c, func(ref leaseRef, number int64) error {
		if r.leaseHeld(ref.id) {
			left++
			return nil
		}
		keys, err := r.d.leases.Drop(r.batch, lease.Ref{ID: ref.id, Incarnation: ref.incarnation})
		if err != nil {
			return err
		}
		return r.deleteKeys(ref.id, number, keys)
	})
}

// forget removes the records of leases that have no key left anywhere.
func (r *dataRun) forget(payload []byte) error {
	return eachLeaseRef(payload, func(ref leaseRef) error {
		return r.forgetLease(lease.Ref{ID: ref.id, Incarnation: ref.incarnation})
	})
}

// dropTombstones takes tombstones away.
func (r *dataRun) dropTombstones(payload []byte) error {
	return eachLeaseRef(payload, func(ref leaseRef) error {
		return r.d.leases.DropTombstone(r.batch, lease.Ref{ID: ref.id, Incarnation: ref.incarnation})
	})
}

// Begin takes all tombstones away: what was registered in earlier terms can't apply
// any more.
func (r *dataRun) Begin() error { return r.d.leases.DropTombstones(r.batch) }
