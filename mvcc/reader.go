package mvcc

import (
	"bytes"
	"cmp"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tidwall/btree"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// reader answers range requests from a pair of trees: a View's published ones,
// or the working ones of a Writer. It belongs to one goroutine.
type reader struct {
	db     *pebble.DB
	layout layout
	cur    *tree
	// creations is nil where there is no index of them, or not all of it.
	creations *creationTree
	// rev is the newest revision to be seen and compact the oldest.
	rev, compact int64
	// floor is the revision below which requests find no history: compact, or what
	// the caller knows of a compaction that has not come here yet.
	floor int64
	// top is the revision of the newest change in the trees, or above. What is
	// seen at a revision from top on is what they hold.
	top int64
	// pending is what the running batch has written, nil in a View.
	pending *pending
	// counters are the store's.
	counters *counters

	// Scratch: the outcome of looking for one key, probes for searching the
	// trees, where the last search in cur ended (the next one is often for the
	// same key), and a storage key.
	one      [1]*item
	probe    item
	creation creation
	hint     btree.PathHint
	buf      []byte
}

// get returns the current version of key, or nil.
func (r *reader) get(key []byte) *item {
	r.probe.key = key
	it, _ := r.cur.GetHint(&r.probe, &r.hint)
	return it
}

// rank returns the number of current keys below key. It looks at no more than
// the logarithm of their number.
func (r *reader) rank(key []byte, low int) int {
	r.probe.key = key
	high := r.cur.Len()
	for low < high {
		mid := int(uint(low+high) >> 1)
		if it, _ := r.cur.GetAt(mid); r.cur.Less(it, &r.probe) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// count returns the number of current keys in span.
func (r *reader) count(span keys.Span) int {
	if span.Empty() {
		return 0
	}
	low := 0
	if len(span.Start) > 0 {
		low = r.rank(span.Start, 0)
	}
	if span.Unbounded() {
		return r.cur.Len() - low
	}
	return r.rank(span.End, low) - low
}

// ascend calls fn for the current versions in span, in key order, until fn
// returns false.
func (r *reader) ascend(span keys.Span, fn func(*item) bool) {
	if span.Empty() {
		return
	}
	r.probe.key = span.Start
	r.cur.Ascend(&r.probe, func(it *item) bool {
		return (span.Unbounded() || bytes.Compare(it.key, span.End) < 0) && fn(it)
	})
}

// kv returns version it with its value.
func (r *reader) kv(it *item) (*mvccpb.KeyValue, error) {
	kv := &mvccpb.KeyValue{}
	it.fill(kv)
	var err error
	kv.Value, err = r.value(it)
	return kv, err
}

// at returns the revision at which a request wants to see the keys, and whether
// that is one that the trees have left behind.
func (r *reader) at(req *pb.RangeRequest) (rev int64, past bool) {
	rev = req.Revision
	if rev <= 0 {
		rev = r.rev
	}
	return rev, rev < r.top
}

// checkRev returns the error of reading at the requested revision rev.
func (r *reader) checkRev(rev int64) error {
	switch {
	case rev > r.rev:
		return ErrFutureRev
	case rev > 0 && rev < r.floor:
		return ErrCompacted
	}
	return nil
}

// rangeLimit returns how many versions a request needs in key order before they
// are sorted: one more than the limit, to know whether there is more, or 0 for
// all of them. A request without an order is cut here even if its target then
// asks for a sort, which is etcd's behaviour.
func rangeLimit(req *pb.RangeRequest) int {
	if req.Limit <= 0 || req.Limit >= math.MaxInt32 || !InKeyOrder(req) {
		return 0
	}
	return int(req.Limit) + 1
}

// InKeyOrder reports whether a request's limit cuts the keys in their own order.
func InKeyOrder(req *pb.RangeRequest) bool {
	return !hasFilters(req) && (req.SortOrder == pb.RangeRequest_NONE ||
		req.SortTarget == pb.RangeRequest_KEY && req.SortOrder == pb.RangeRequest_ASCEND)
}

func hasFilters(req *pb.RangeRequest) bool {
	return req.MinModRevision != 0 || req.MaxModRevision != 0 || req.MinCreateRevision != 0 || req.MaxCreateRevision != 0
}

// filtered reports whether a request's filters leave it out.
func filtered(req *pb.RangeRequest, it *item) bool {
	return req.MinModRevision != 0 && it.mod < req.MinModRevision ||
		req.MaxModRevision != 0 && it.mod > req.MaxModRevision ||
		req.MinCreateRevision != 0 && it.create < req.MinCreateRevision ||
		req.MaxCreateRevision != 0 && it.create > req.MaxCreateRevision
}

// keyCompare returns the order of a request's results, nil for key order. VALUE
// is not among them.
func keyCompare(target pb.RangeRequest_SortTarget) func(a, b *item) int {
	switch target {
	case pb.RangeRequest_VERSION:
		return func(a, b *item) int { return cmp.Compare(a.version, b.version) }
	case pb.RangeRequest_CREATE:
		return func(a, b *item) int { return cmp.Compare(a.create, b.create) }
	case pb.RangeRequest_MOD:
		return func(a, b *item) int { return cmp.Compare(a.mod, b.mod) }
	case pb.RangeRequest_KEY, pb.RangeRequest_VALUE:
	}
	return nil
}
