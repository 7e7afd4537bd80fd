package mvcc

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// View reads one published state. It is for one goroutine and must be closed,
// soon: it keeps Sweep from removing what it may read. Keys and values in its
// answers are shared with the store and must not be changed.
type View struct {
	reader
	s  *Store
	st *state
	// pinned is what keeps Sweep away, nil once the view is closed.
	pinned *state
}

// View returns the newest published state.
func (s *Store) View() *View {
	st := s.pin()
	return &View{s: s, st: st, pinned: st, reader: reader{
		db: s.db, layout: s.layout, cur: st.cur, creations: st.creations, rev: st.rev, top: st.rev, compact: st.compact, floor: st.compact,
		counters: &s.counters,
	}}
}

// Close ends the use of the view. Closing it again does nothing.
func (v *View) Close() {
	if v.pinned != nil {
		v.pinned.unpin()
		v.pinned = nil
	}
}

// reopen undoes Close for reads at revision rev, unless a compaction above it
// has come meanwhile: then it returns ErrCompacted.
func (v *View) reopen(rev int64) error {
	st := v.s.pin()
	if st.compact > rev {
		st.unpin()
		return ErrCompacted
	}
	v.pinned = st
	return nil
}

// Rev returns the revision that the view is of: the newest of the state, or the
// one that At has named.
func (v *View) Rev() int64 { return v.rev }

// ResolvedOf is Store.ResolvedOf as of the view.
func (v *View) ResolvedOf(spans ...keys.Span) int64 { return v.st.resolvedOf(spans...) }

// HeldFrom returns the revision up to which the view lacks no change to the keys of spans, or
// without spans to any key, because of an exclusive hold, or the highest number if none
// of them is held so.
func (v *View) HeldFrom(spans ...keys.Span) int64 { return v.st.holds.from(spans) }

// At makes the view one of revision rev: what came later is not seen, and answers
// say that rev is the newest there is. The caller knows that no change up to rev
// is missing. At returns ErrCompacted if the state of then is gone. Transactions
// need a rev that is not below that of the state.
func (v *View) At(rev int64) error {
	if rev < v.top && rev < v.compact {
		return ErrCompacted
	}
	v.rev = rev
	return nil
}

// Past reports whether the view is of a revision that the state has left behind.
func (v *View) Past() bool { return v.rev < v.top }

// Forget makes requests for revisions below rev answer ErrCompacted, though the
// store may still have them.
func (v *View) Forget(rev int64) { v.floor = max(v.floor, rev) }

// Compacted returns the compaction revision of the state, -1 if there was none.
func (v *View) Compacted() int64 { return v.compact }

// Len returns the number of current keys.
func (v *View) Len() int { return v.cur.Len() }

// Size returns the logical size in bytes of the retained versions.
func (v *View) Size() int64 { return v.st.added - v.s.sweep.removed.Load() }

// LiveSize returns the logical size in bytes of the current versions.
func (v *View) LiveSize() int64 { return v.st.live }

// EachLease calls fn for each current key with a lease, in key order, until fn
// returns false. fn may keep key and must not change it.
func (v *View) EachLease(fn func(lease int64, key []byte) bool) {
	v.cur.Scan(func(it *item) bool { return it.lease == 0 || fn(it.lease, it.key) })
}

// Range answers a range request. It returns ErrCompacted, ErrFutureRev,
// ErrReplaced, the context's error, or a fault of storage.
func (v *View) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := v.checkRev(req.Revision); err != nil {
		return nil, err
	}
	resp, err := v.rangeKeys(ctx, req)
	if err := v.settle(err); err != nil {
		return nil, err
	}
	return resp, nil
}

// Txn answers a transaction whose taken path only reads. A write on it is the
// caller's fault and answered with ErrEmptyOp.
func (v *View) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := v.txn(ctx, req)
	if err := v.settle(err); err != nil {
		return nil, err
	}
	return resp, nil
}

// settle returns what a read that ended in err amounts to: nothing that was
// read while the content was replaced can be trusted, errors neither.
func (v *View) settle(err error) error {
	if v.s.generation.Load() != v.st.generation {
		return ErrReplaced
	}
	return err
}
