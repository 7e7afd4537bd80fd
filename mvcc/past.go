package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// findPast looks up the versions in span as of revision rev. Where little has
// changed since, they are mostly the current ones.
func (r *reader) findPast(ctx context.Context, span keys.Span, rev int64, req *pb.RangeRequest) (found, error) {
	c := newPastCollector(req)
	if r.pending == nil {
		changed, ok, err := r.changedSince(ctx, span, rev, fewChanges+r.count(span)/changesPart)
		if err != nil {
			return found{}, err
		}
		if ok {
			err := r.findBehind(ctx, span, rev, changed, &c)
			return c.found, err
		}
	}
	err := r.eachPast(ctx, span, rev, func(v *pastVersion) bool {
		c.past(v)
		return true
	})
	return c.found, err
}

// pastCollector gathers the versions that answer a request for the past.
type pastCollector struct {
	found
	// limit is how many are needed, 0 for all; none and bare say that no versions
	// or no values are.
	limit      int
	none, bare bool
	// block and slab are where the next ones are put.
	block []item
	slab  slab
}

func newPastCollector(req *pb.RangeRequest) pastCollector {
	return pastCollector{
		limit: rangeLimit(req), none: req.CountOnly,
		bare: req.KeysOnly && req.SortTarget != pb.RangeRequest_VALUE, slab: slab{rest: math.MaxInt},
	}
}

// full reports whether further versions only count.
func (c *pastCollector) full() bool { return c.none || c.limit > 0 && len(c.items) == c.limit }

// past takes v, in memory of its own.
func (c *pastCollector) past(v *pastVersion) {
	c.count++
	if c.full() {
		return
	}
	if len(c.block) == 0 {
		c.block = make([]item, 32)
	}
	it := &c.block[0]
	c.block = c.block[1:]
	*it = newItem(c.slab.clone(v.key), v.at, v.rec)
	if !c.bare {
		it.value = c.slab.clone(v.rec.value)
	}
	c.items = append(c.items, it)
}

// current takes a current version.
func (c *pastCollector) current(it *item) {
	if !c.full() {
		c.items = append(c.items, it)
	}
}

// pastVersion is the version of a key as of some revision. Its slices are valid
// only until the next one.
type pastVersion struct {
	key []byte
	at  stamp
	rec record
}

// item returns v with its value, in memory of its own.
func (v *pastVersion) item() *item {
	it := newItem(bytes.Clone(v.key), v.at, v.rec)
	it.value = bytes.Clone(v.rec.value)
	return &it
}

// eachPast calls fn for each key in span that lived at revision rev, in key
// order, until fn returns false.
func (r *reader) eachPast(ctx context.Context, span keys.Span, rev int64, fn func(*pastVersion) bool) error {
	if span.Empty() {
		return nil
	}
	over, err := r.overlay(span, rev)
	if err != nil {
		return err
	}
	stopped := false
	emit := func(v *pastVersion) bool {
		stopped = !v.rec.dead && !fn(v)
		return !stopped
	}
	err = r.scanPast(ctx, span, rev, func(v *pastVersion) bool {
		for len(over) > 0 && bytes.Compare(over[0].key, v.key) < 0 {
			if !emit(over[0]) {
				return false
			}
			over = over[1:]
		}
		if len(over) > 0 && bytes.Equal(over[0].key, v.key) {
			v, over = over[0], over[1:]
		}
		return emit(v)
	})
	for err == nil && !stopped && len(over) > 0 {
		emit(over[0])
		over = over[1:]
	}
	return err
}

// overlay returns, in key order, the newest version up to rev of each key in
// span that the running batch has written: Pebble does not show them yet.
func (r *reader) overlay(span keys.Span, rev int64) ([]*pastVersion, error) {
	if r.pending == nil || rev <= r.pending.base {
		return nil, nil
	}
	newest := make(map[string]*item)
	for _, c := range r.pending.changes {
		if c.it.mod <= rev && span.Contains(c.it.key) {
			newest[string(c.it.key)] = c.it
		}
	}
	over := make([]*pastVersion, 0, len(newest))
	for _, k := range slices.Sorted(maps.Keys(newest)) {
		it := newest[k]
		value, err := r.value(it)
		if err != nil {
			return nil, err
		}
		over = append(over, &pastVersion{key: it.key, at: it.stamp(), rec: record{
			dead: it.dead, create: it.create, version: it.version, lease: it.lease, value: value,
		}})
	}
	return over, nil
}

// scanPast calls fn for the newest stored version up to rev of each key in
// span, tombstones included, until fn returns false.
func (r *reader) scanPast(ctx context.Context, span keys.Span, rev int64, fn func(*pastVersion) bool) (err error) {
	opts := r.layout.versionBounds()
	opts.LowerBound = r.layout.appendVersions(nil, span.Start)
	if !span.Unbounded() {
		opts.UpperBound = r.layout.appendVersions(nil, span.End)
	}
	iter, err := r.db.NewIter(opts)
	if err != nil {
		return fmt.Errorf("read past: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	f := newForward(iter)
	var v pastVersion
	var next []byte
	n := 0
	for ok := f.First(); ok; ok = f.to(next) {
		if n++; n%ctxInterval == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var head []byte
		if v.key, head, v.at, err = r.layout.splitVersion(v.key[:0], f.Key()); err != nil {
			return err
		}
		next = append(next[:0], head...)
		if v.at.rev > rev {
			next = keys.AppendUint32Desc(keys.AppendInt64Desc(next, rev), maxSub)
			continue
		}
		b, err := f.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read past of %q: %w", v.key, err)
		}
		if v.rec, err = decodeRecord(b); err != nil {
			return fmt.Errorf("read past of %q: %w", v.key, err)
		}
		if !fn(&v) {
			return nil
		}
		// The head ends in the terminator of the escaped key. One more sorts above
		// all versions of the key and below everything that follows them.
		next[len(next)-1]++
	}
	return f.Error()
}
