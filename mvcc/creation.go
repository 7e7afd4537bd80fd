package mvcc

import (
	"bytes"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// byCreation reports whether the index of creations answers a request for the current
// revision: the first or last created keys of a directory and what lies below.
// A limit must keep the answer short, else sorting is cheaper. It asks for the index
// where there is none.
func (r *reader) byCreation(req *pb.RangeRequest, span keys.Span) bool {
	if !isByCreation(req, span) {
		return false
	}
	if r.creations == nil && !r.counters.byCreation.Load() {
		r.counters.byCreation.Store(true)
	}
	return r.creations != nil
}

func isByCreation(req *pb.RangeRequest, span keys.Span) bool {
	return req.SortTarget == pb.RangeRequest_CREATE && req.SortOrder != pb.RangeRequest_NONE &&
		req.Limit > 0 && req.Limit <= maxCreationLimit &&
		bytes.HasSuffix(span.Start, []byte{'/'}) && span.IsPrefix()
}

const maxCreationLimit = 16

// firstCreated returns the first (or last, in descending order) created keys below
// directory dir that pass the request's filters, one more than its limit if
// there are as many. It visits dir and each directory below it, and in each
// only the keys it returns, unless a filter on mod revisions drops them.
func (r *reader) firstCreated(dir []byte, req *pb.RangeRequest) []*item {
	c := creationCollector{r: r, req: req, want: int(req.Limit) + 1, desc: req.SortOrder == pb.RangeRequest_DESCEND}
	for at, ok := r.nextDirectory(dir, dir); ok; at, ok = r.nextDirectory(dir, keys.Next(at)) {
		if c.desc {
			c.descend(at)
		} else {
			c.ascend(at)
		}
	}
	return c.best
}

// nextDirectory returns the lowest directory that holds a key itself, is not
// below from, and begins with prefix.
func (r *reader) nextDirectory(prefix, from []byte) (dir []byte, ok bool) {
	r.creation = creation{key: from, dir: len(from), create: math.MinInt64}
	r.creations.Ascend(&r.creation, func(b *creation) bool {
		dir = b.directory()
		return false
	})
	return dir, dir != nil && bytes.HasPrefix(dir, prefix)
}

// creationCollector merges the creations of several directories.
type creationCollector struct {
	r    *reader
	req  *pb.RangeRequest
	desc bool
	// want bounds best. best is in the order of the request, equal create
	// revisions in key order.
	want int
	best []*item
}

// offer adds the key of b where it belongs. It reports whether a later creation of
// the same directory can still be among the best.
func (c *creationCollector) offer(b *creation) bool {
	if c.req.MinCreateRevision != 0 && b.create < c.req.MinCreateRevision {
		return !c.desc
	}
	if c.req.MaxCreateRevision != 0 && b.create > c.req.MaxCreateRevision {
		return c.desc
	}
	if len(c.best) == c.want && !c.precedes(b, c.best[c.want-1]) {
		// In descending order creations with one create revision come in
		// descending key order: one that is too late says nothing of the next.
		return c.desc && b.create == c.best[c.want-1].create
	}
	it := c.r.get(b.key)
	if it == nil || filtered(c.req, it) {
		return true
	}
	i := len(c.best)
	for i > 0 && c.precedes(b, c.best[i-1]) {
		i--
	}
	if len(c.best) < c.want {
		c.best = append(c.best, nil)
	}
	copy(c.best[i+1:], c.best[i:])
	c.best[i] = it
	return true
}

// precedes reports whether b comes before it in the order of the request.
func (c *creationCollector) precedes(b *creation, it *item) bool {
	if b.create != it.create {
		return b.create < it.create != c.desc
	}
	return bytes.Compare(b.key, it.key) < 0
}

func (c *creationCollector) ascend(dir []byte) {
	c.r.creation = creation{key: dir, dir: len(dir), create: math.MinInt64}
	if c.req.MinCreateRevision != 0 {
		c.r.creation.create = c.req.MinCreateRevision
	}
	c.r.creations.Ascend(&c.r.creation, func(b *creation) bool {
		return bytes.Equal(b.directory(), dir) && c.offer(b)
	})
}

func (c *creationCollector) descend(dir []byte) {
	// The probe lies above the creations that count: its create revision is one
	// higher, and no key is shorter than its directory.
	c.r.creation = creation{key: dir, dir: len(dir), create: math.MaxInt64}
	if m := c.req.MaxCreateRevision; m != 0 && m != math.MaxInt64 {
		c.r.creation.create = m + 1
	}
	c.r.creations.Descend(&c.r.creation, func(b *creation) bool {
		if c.req.MaxCreateRevision != 0 && b.create > c.req.MaxCreateRevision {
			return true
		}
		return bytes.Equal(b.directory(), dir) && c.offer(b)
	})
}
