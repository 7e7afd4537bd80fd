package shard

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

var (
	// errUnnumbered turns away what was proposed without a number to a shard that
	// has become an ordered one, and what it does not take any more.
	errUnnumbered = fmt.Errorf("%w: the shard is ordered", raft.ErrNotApplied)
	// errOvertaken turns away a command whose number the shard has passed.
	errOvertaken = fmt.Errorf("%w: its number is too old", raft.ErrNotApplied)
	// errHeld turns away a command that meets what a transaction over several shards holds.
	errHeld = fmt.Errorf("%w: a transaction that is not settled holds what it is for", raft.ErrNotApplied)
	// errNotOwned turns away a command for keys or a lease of another shard.
	errNotOwned = fmt.Errorf("%w: the shard does not own what it is for", raft.ErrNotApplied)
)

// numbers returns how many numbers a command of an ordered shard takes.
func numbers(k Kind, payload []byte) (int, error) {
	if k == kindLeaseExpire || k == kindLeaseEnd || k == kindLeaseDrop {
		n := 0
		err := eachLeaseRef(payload, func(leaseRef) error {
			n++
			return nil
		})
		return n, err
	}
	if fenced(k) || k == kindGuarded || k == kindPrepare || k == kindDecide {
		return 1, nil
	}
	return 0, nil
}

// place gives a command its place in the order of revisions, or says why it has
// none. reached is the revision that the shard has reached behind it.
func (r *dataRun) place(c raft.Command) (reached int64, rejected, failed error) {
	if !r.shape.Ordered {
		return 0, nil, nil
	}
	n, err := numbers(Kind(c.Kind), c.Payload)
	switch {
	case err != nil:
		return 0, nil, err
	case Kind(c.Kind) == KindCompact:
		return 0, errUnnumbered, nil
	case n == 0:
		return 0, nil, nil
	case c.Number == 0:
		return 0, errUnnumbered, nil
	case c.Number <= r.w.Rev():
		return 0, errOvertaken, nil
	}
	return c.Number + int64(n) - 1, nil, nil
}

// owns reports whether the shard owns all keys of the spans.
func (r *dataRun) owns(spans []keys.Span) bool {
	if r.all {
		return true
	}
	for _, s := range spans {
		if !r.shape.Owned.Covers(keys.Positions(s)) {
			return false
		}
	}
	return true
}

// home reports whether the shard keeps the record of a lease.
func (r *dataRun) home(id int64) bool {
	return r.all || r.shape.Owned.Covers(keys.LeasePositions(id))
}

// takeFirstShape gives the shard its first shape.
func (r *dataRun) takeFirstShape(payload []byte) error {
	s, err := decodeShape(payload)
	if err != nil || r.shape.HasShape() {
		return err
	}
	return r.reshape(s)
}

// order makes the shard an ordered one.
func (r *dataRun) order() (Past, error) {
	past := Past{Rev: r.w.Rev(), Compacted: r.w.Compacted()}
	s := r.shape
	if s.Ordered || !s.HasShape() {
		return past, nil
	}
	s.Ordered = true
	return past, r.reshape(s)
}

func (r *dataRun) reshape(s Shape) error {
	if err := r.batch.Set(shapeKey(r.d.prefix), appendShape(nil, s), nil); err != nil {
		return fmt.Errorf("write shape: %w", err)
	}
	r.setShape(s)
	r.reshaped = true
	return nil
}

// setShape takes over a shape. Commands before the first shape are of a version that knew
// no shapes, and whose one shard owned everything: leaders of this one wait for it.
func (r *dataRun) setShape(s Shape) {
	r.shape = s
	r.all = !s.HasShape() || len(s.Owned) == 1 && s.Owned[0].Equal(keys.Span{})
}

var errBadSweep = errors.New("malformed sweep")

// sweep takes over the compaction revision of the cluster.
func (r *dataRun) sweep(payload []byte) error {
	rev, n := binary.Varint(payload)
	if n <= 0 {
		return errBadSweep
	}
	if n != len(payload) {
		return fmt.Errorf("sweep of %d bytes: %w", len(payload), keys.ErrNewer)
	}
	if rev <= r.w.Compacted() {
		return nil
	}
	r.w.Reach(rev)
	if err := r.w.Compact(rev); err != nil {
		return err
	}
	r.compacted = true
	return nil
}

// touches returns the keys that a request names to read, and those that it may write. It reports
// false for a request whose keys are known only where it applies.
func touches(request any) (reads, writes []keys.Span, known bool) {
	switch req := request.(type) {
	case *pb.PutRequest:
		writes = []keys.Span{keys.Point(req.Key)}
	case *pb.DeleteRangeRequest:
		writes = []keys.Span{keys.FromRange(req.Key, req.RangeEnd)}
	case *pb.TxnRequest:
		mvcc.EachSpan(req, func(s keys.Span, write bool) bool {
			if write {
				writes = append(writes, s)
			} else {
				reads = append(reads, s)
			}
			return true
		})
	default:
		return nil, nil, false
	}
	return reads, writes, true
}
