package mvcc

import (
	"bytes"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// PlaceByKey is the place of all changes whose order among each other, over whichever stores they
// are, is that of their keys; those of one store follow each other from there on. It is behind any other
// place.
const PlaceByKey uint32 = 1 << 31

// Before reports whether the change of a key at one place comes before that of another key at another,
// of changes at one revision.
func Before(place uint32, key []byte, other uint32, otherKey []byte) bool {
	if place >= PlaceByKey && other >= PlaceByKey {
		return bytes.Compare(key, otherKey) < 0
	}
	return place < other
}

// Placed is an operation of a transaction that writes, with its place among all changes of
// the transaction, over whichever stores they are.
type Placed struct {
	// Place is that of the operation's first change; the others follow it, in key order.
	Place uint32
	// Op is a put or a deletion.
	Op *pb.RequestOp
}

// Insert settles a transaction: it makes its changes, at revision rev, and ends its hold.
// rev may be below the store's, which nobody can have seen of the keys held: it is above the hold's
// bound, and up to there nothing is missing. What could have been rejected was checked
// while the keys were held.
func (w *Writer) Insert(id string, rev int64, ops []Placed) error {
	h, ok := w.s.holds.byID.Get(id)
	if !ok || rev <= h.bound {
		invariant.Violated("insertion at %d of a transaction that does not hold keys below", rev)
	}
	if err := w.insert(rev, ops); err != nil {
		return err
	}
	return w.Release(id)
}

// InsertUnheld makes the changes of a transaction that holds nothing here, at revision rev, which is above the
// store's. The caller has found that they meet no hold.
func (w *Writer) InsertUnheld(rev int64, ops []Placed) error {
	if rev <= w.rev {
		invariant.Violated("insertion at %d of a transaction that holds nothing, at revision %d", rev, w.rev)
	}
	return w.insert(rev, ops)
}

func (w *Writer) insert(rev int64, ops []Placed) error {
	w.number, w.numbered, w.killed = rev, false, false
	w.pending.base = min(w.pending.base, rev-1)
	for _, p := range ops {
		w.sub = p.Place
		var err error
		switch op := p.Op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			err = w.put(op.RequestPut, nil)
		case *pb.RequestOp_RequestDeleteRange:
			_, err = w.deleteRange(op.RequestDeleteRange, false)
		default:
			err = ErrEmptyOp
		}
		if err != nil {
			return fmt.Errorf("insert at %d: %w", rev, err)
		}
	}
	w.Reach(rev)
	return nil
}
