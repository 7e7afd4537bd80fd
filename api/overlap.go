package api

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/pkg/v3/adt"
)

// checkOverlap refuses a branch of a transaction that writes a key twice: two
// puts of it, or a put of it and a deletion whose range holds it. Deletions may
// overlap each other, and the two branches of a nested transaction exclude each
// other. The rule has two gaps, which are etcd's and kept: a deletion "from key
// on" holds no key here, and the puts of a nested transaction are not compared
// with the deletions of its later siblings.
func checkOverlap(branch []*pb.RequestOp) error {
	if writesAtMostOnce(branch) {
		return nil
	}
	_, err := collectWrites(branch)
	return err
}

// writesAtMostOnce is the common case that needs no bookkeeping.
func writesAtMostOnce(branch []*pb.RequestOp) bool {
	n := 0
	for _, op := range branch {
		switch op.GetRequest().(type) {
		case *pb.RequestOp_RequestTxn:
			return false
		case *pb.RequestOp_RequestPut, *pb.RequestOp_RequestDeleteRange:
			n++
		}
	}
	return n <= 1
}

// writeSet is what a branch may write, with all that is nested in it.
type writeSet struct {
	puts map[string]struct{}
	dels adt.IntervalTree
}

func newWriteSet() *writeSet {
	return &writeSet{puts: make(map[string]struct{}), dels: adt.NewIntervalTree()}
}

// collectWrites returns what branch may write, or errDuplicateKey. The branch's
// own deletions come first, its own puts last, whatever their order in it.
func collectWrites(branch []*pb.RequestOp) (*writeSet, error) {
	w := newWriteSet()
	for _, op := range branch {
		if d := op.GetRequestDeleteRange(); d != nil {
			w.dels.Insert(intervalOf(d), nil)
		}
	}
	for _, op := range branch {
		t := op.GetRequestTxn()
		if t == nil {
			continue
		}
		nested, err := collectNested(t)
		if err != nil {
			return nil, err
		}
		for key := range nested.puts {
			if w.holds(key) {
				return nil, errDuplicateKey
			}
		}
		w.absorb(nested)
	}
	for _, op := range branch {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		key := string(p.GetKey())
		if w.holds(key) {
			return nil, errDuplicateKey
		}
		w.puts[key] = struct{}{}
	}
	return w, nil
}

// collectNested returns what either branch of a nested transaction may write.
func collectNested(t *pb.TxnRequest) (*writeSet, error) {
	w, err := collectWrites(t.GetSuccess())
	if err != nil {
		return nil, err
	}
	other, err := collectWrites(t.GetFailure())
	if err != nil {
		return nil, err
	}
	w.absorb(other)
	return w, nil
}

// holds tells whether the set puts or deletes key.
func (w *writeSet) holds(key string) bool {
	if _, ok := w.puts[key]; ok {
		return true
	}
	return w.dels.Len() > 0 && w.dels.Intersects(adt.NewStringAffinePoint(key))
}

// absorb adds another set, which must not be used after. The smaller part goes
// into the larger one, so that deep nesting does not copy all keys at each level.
func (w *writeSet) absorb(other *writeSet) {
	if len(other.puts) > len(w.puts) {
		w.puts, other.puts = other.puts, w.puts
	}
	for key := range other.puts {
		w.puts[key] = struct{}{}
	}
	if other.dels.Len() > w.dels.Len() {
		w.dels, other.dels = other.dels, w.dels
	}
	if other.dels.Len() > 0 {
		w.dels.Union(other.dels, adt.NewStringAffineInterval("\x00", ""))
	}
}

// intervalOf returns the keys that a deletion holds for the overlap rule: its
// range_end is taken as it stands, so that "\x00" ends before every key.
func intervalOf(d *pb.DeleteRangeRequest) adt.Interval {
	if len(d.GetRangeEnd()) == 0 {
		return adt.NewStringAffinePoint(string(d.GetKey()))
	}
	return adt.NewStringAffineInterval(string(d.GetKey()), string(d.GetRangeEnd()))
}
