package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/mvcc"
)

// checker holds a history against the truth.
type checker struct {
	tb testing.TB
	t  *truth
	h  *history
	// claimed are the revisions that calls of clients explain.
	claimed map[int64]*op
	// where is the revision at which a value was written.
	where map[string]int64
	// placed are the calls with their place in the order of revisions.
	placed []placed
	// solo is the last revision that the only shard of the cluster counted by itself.
	solo int64
	// leases are the leases whose end is allowed, by id.
	leases map[int64]*leaseLife
}

// placed is a call that took place at a revision.
type placed struct {
	*op
	rev int64
	// changed says that it is the only one there.
	changed bool
}

func (c *checker) fault(format string, args ...any) {
	c.tb.Helper()
	c.tb.Errorf(format, args...)
}

// check holds everything against everything.
func (c *checker) check() {
	c.tb.Helper()
	c.claimed, c.where = make(map[int64]*op), make(map[string]int64)
	for rev, events := range c.t.events {
		for _, e := range changesOf(events) {
			if !e.deletes {
				if other, ok := c.where[e.value]; ok && other != rev {
					c.fault("%q is written at %d and at %d", e.value, other, rev)
				}
				c.where[e.value] = rev
			}
		}
	}
	for _, o := range c.h.ops {
		// Where nobody leads for a while a serializable read is of what the node holds.
		unled := o.serializable() && o.ended.Sub(o.beganAt) >= callTimeout/3
		if o.outcome == answered && o.header() < o.shown && !unled {
			c.fault("header %d; this node had shown %d: %v", o.header(), o.shown, o)
		}
		switch {
		case o.writes():
			c.write(o)
		case o.changesLease():
			if o.outcome == answered {
				c.placed = append(c.placed, placed{o, o.header(), false})
			}
		default:
			c.read(o)
		}
	}
	c.unexplained()
	c.revocations()
	c.order()
	c.compactions()
}

// write checks one write.
func (c *checker) write(o *op) {
	rev := o.header()
	switch o.outcome {
	case refused:
		for _, v := range o.values() {
			if at, ok := c.where[v]; ok {
				c.fault("refused, and written at %d: %v", at, o)
			}
		}
		return
	case unknown:
		rev = 0
		for _, v := range o.values() {
			rev = max(rev, c.where[v])
		}
		if rev == 0 {
			return
		}
	case answered:
	}
	changes, answer := c.t.effect(o.req, rev)
	if o.outcome == answered && c.changedNothing(o, changes, answer) {
		return
	}
	if got := changesOf(c.t.events[rev]); !slices.Equal(got, changes) {
		c.fault("at %d: %+v instead of %+v: %v", rev, got, changes, o)
	}
	if o.outcome == answered && !proto.Equal(bare(o.resp), bare(answer)) {
		c.fault("answer {%s} instead of {%s}: %v", short(bare(o.resp)), short(bare(answer)), o)
	}
	if len(changes) > 0 {
		if other := c.claimed[rev]; other != nil {
			c.fault("two writes at %d: %v, %v", rev, other, o)
		}
		c.claimed[rev] = o
	}
	c.placed = append(c.placed, placed{o, rev, len(changes) > 0})
}

// changedNothing reports whether a write changed nothing and was answered from the newest
// state: it has no revision of its own then.
func (c *checker) changedNothing(o *op, changes []change, answer proto.Message) bool {
	rev := o.header()
	nothing, fromNewest := c.t.effect(o.req, rev+1)
	if len(nothing) > 0 || !proto.Equal(bare(o.resp), bare(fromNewest)) {
		return false
	}
	if len(changes) > 0 && slices.Equal(changes, changesOf(c.t.events[rev])) && proto.Equal(bare(o.resp), bare(answer)) {
		return false
	}
	c.placed = append(c.placed, placed{o, rev, false})
	return true
}

// read checks one read.
func (c *checker) read(o *op) {
	if o.outcome != answered {
		return
	}
	var want proto.Message
	switch r := o.req.(type) {
	case *pb.RangeRequest:
		want = c.t.answer(r, o.header())
	case *pb.TxnRequest:
		_, want = c.t.effect(r, o.header()+1)
	default:
		return
	}
	if got := bare(o.resp); !proto.Equal(got, bare(want)) {
		c.fault("at %d answered {%s} instead of {%s}: %v", o.header(), short(got), short(bare(want)), o)
	}
	if !o.serializable() {
		c.placed = append(c.placed, placed{o, o.header(), false})
	}
}

// unexplained finds changes that nobody made. Where several calls of unknown outcome may have made a change, the one that
// began first did: it may have done so wherever the others may.
func (c *checker) unexplained() {
	used := make(map[*op]bool)
	byBegin := slices.SortedFunc(slices.Values(c.h.ops), func(a, b *op) int { return cmp.Compare(a.begin, b.begin) })
	for _, rev := range c.t.revs {
		if c.claimed[rev] != nil {
			continue
		}
		got := changesOf(c.t.events[rev])
		if c.leaseEnd(rev) {
			continue
		}
		found := slices.ContainsFunc(byBegin, func(o *op) bool {
			if o.outcome != unknown || !o.writes() || len(o.values()) > 0 || used[o] {
				return false
			}
			changes, _ := c.t.effect(o.req, rev)
			if !slices.Equal(got, changes) {
				return false
			}
			used[o] = true
			c.placed = append(c.placed, placed{o, rev, true})
			return true
		})
		if !found {
			c.fault("nobody made the changes at %d: %+v", rev, got)
		}
	}
}

// leaseEnd reports whether all that happened at a revision is the end of one lease
// that was allowed to end: all its keys are deleted, and nothing else.
func (c *checker) leaseEnd(rev int64) bool {
	var id int64
	for _, e := range changesOf(c.t.events[rev]) {
		before := c.t.at(e.key, rev-1)
		if !e.deletes || before == nil || before.Lease == 0 || id != 0 && before.Lease != id {
			return false
		}
		id = before.Lease
	}
	l := c.leases[id]
	if l == nil {
		return false
	}
	for _, kv := range c.t.in([]byte{0}, []byte{0}, rev) {
		if kv.Lease == id {
			c.fault("%v ended at %d, and not its key %q", l, rev, kv.Key)
		}
	}
	if !slices.IsSortedFunc(c.t.events[rev], func(a, b *mvccpb.Event) int { return bytes.Compare(a.Kv.Key, b.Kv.Key) }) {
		c.fault("the keys of %v went in another order than theirs: %v", l, c.t.events[rev])
	}
	l.deletedAt = append(l.deletedAt, rev)
	return true
}

// revocations checks that what the header of a revocation says is the revision at which the
// keys of the lease went.
func (c *checker) revocations() {
	for _, o := range c.h.ops {
		r, ok := o.req.(*pb.LeaseRevokeRequest)
		if !ok || o.outcome != answered {
			continue
		}
		for _, rev := range c.leases[r.ID].deletedAt {
			if rev != o.header() {
				c.fault("keys went at %d: %v", rev, o)
			}
		}
	}
}

// order checks that calls which came one after the other have their places in the
// order of revisions the same way round.
func (c *checker) order() {
	byEnd := slices.Clone(c.placed)
	byEnd = slices.DeleteFunc(byEnd, func(p placed) bool { return p.outcome != answered })
	slices.SortFunc(byEnd, func(a, b placed) int { return cmp.Compare(a.end, b.end) })
	slices.SortFunc(c.placed, func(a, b placed) int { return cmp.Compare(a.begin, b.begin) })
	var newest placed
	for _, b := range c.placed {
		for len(byEnd) > 0 && byEnd[0].end < b.begin {
			if byEnd[0].rev > newest.rev {
				newest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if b.rev < newest.rev || b.changed && b.rev == newest.rev {
			c.fault("at %d, after what was at %d: %v, before it %v", b.rev, newest.rev, b.op, newest.op)
		}
	}
}

// compactions checks that a revision that was gone for one is gone for all who come
// later, and none before somebody wanted it so.
func (c *checker) compactions() {
	type gone struct{ end, rev int64 }
	var all []gone
	wanted := func(o *op) bool {
		return slices.ContainsFunc(c.h.ops, func(k *op) bool {
			r, ok := k.req.(*pb.CompactionRequest)
			return ok && k.begin < o.end && r.Revision > o.req.(*pb.RangeRequest).Revision
		})
	}
	for _, o := range c.h.ops {
		switch r := o.req.(type) {
		case *pb.CompactionRequest:
			if o.outcome == answered {
				all = append(all, gone{o.end, r.Revision - 1})
			}
		case *pb.RangeRequest:
			// As in etcd, a replica of the only shard knows no revision that it has not applied.
			if errors.Is(o.err, mvcc.ErrFutureRev) && (!r.Serializable || r.Revision > c.solo) {
				c.fault("a revision that was seen is in the future: %v", o)
			}
			if !errors.Is(o.err, mvcc.ErrCompacted) {
				continue
			}
			if r.Revision == 0 || !wanted(o) {
				c.fault("compacted for no reason: %v", o)
			}
			if !r.Serializable {
				all = append(all, gone{o.end, r.Revision})
			}
		}
	}
	slices.SortFunc(all, func(a, b gone) int { return cmp.Compare(a.end, b.end) })
	for _, o := range c.h.ops {
		r, ok := o.req.(*pb.RangeRequest)
		if !ok || r.Revision == 0 || r.Serializable || o.outcome != answered {
			continue
		}
		for _, g := range all {
			if g.end > o.begin {
				break
			}
			if r.Revision <= g.rev {
				c.fault("revision %d was gone before: %v", g.rev, o)
			}
		}
	}
}

// leaseLife is what a client knows of its lease.
type leaseLife struct {
	id, ttl int64
	// deletedAt are the revisions at which keys of it were deleted because it ended.
	deletedAt []int64
}

func (l *leaseLife) String() string { return fmt.Sprintf("lease %x of %d s", l.id, l.ttl) }
