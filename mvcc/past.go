package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// findPast looks up the versions in span as of revision rev. Those of
// them that find returns hold their values.
func (r *reader) findPast(ctx context.Context, span keys.Span, rev int64, req *pb.RangeRequest) (found, error) {
	var f found
	limit := rangeLimit(req)
	err := r.eachPast(ctx, span, rev, func(v *pastVersion) bool {
		f.count++
		if !req.CountOnly && (limit == 0 || len(f.items) < limit) {
			f.items = append(f.items, v.item())
		}
		return true
	})
	return f, err
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
	return it
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
	var v pastVersion
	var seek []byte
	n := 0
	for ok := iter.First(); ok; n++ {
		if n%ctxInterval == ctxInterval-1 && ctx.Err() != nil {
			return ctx.Err()
		}
		var head []byte
		if v.key, head, v.at, err = r.layout.splitVersion(v.key[:0], iter.Key()); err != nil {
			return err
		}
		seek = append(seek[:0], head...)
		if v.at.rev > rev {
			// Newer than asked for. Histories are short as a rule: look at the
			// next version before seeking.
			if ok = iter.Next(); ok && newerThan(iter.Key(), seek, rev) {
				ok = iter.SeekGE(keys.AppendUint32Desc(keys.AppendInt64Desc(seek, rev), maxSub))
			}
			continue
		}
		b, err := iter.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read past of %q: %w", v.key, err)
		}
		if v.rec, err = decodeRecord(b); err != nil {
			return fmt.Errorf("read past of %q: %w", v.key, err)
		}
		if !fn(&v) {
			return nil
		}
		ok = nextKey(iter, seek)
	}
	return iter.Error()
}

// newerThan reports whether k is a version of the key with that head, above rev.
func newerThan(k, head []byte, rev int64) bool {
	return len(k) == len(head)+stampLen && bytes.HasPrefix(k, head) && stampDesc(k[len(head):]).rev > rev
}

// nextKey moves iter, which stands on a version of the key with that head, to
// the first version of the next key. It may change head.
func nextKey(iter *pebble.Iterator, head []byte) bool {
	for range 4 {
		if !iter.Next() {
			return false
		}
		if k := iter.Key(); len(k) != len(head)+stampLen || !bytes.HasPrefix(k, head) {
			return true
		}
	}
	// The head ends in the terminator of the escaped key. One more sorts above
	// all versions of the key and below everything that follows them.
	head[len(head)-1]++
	return iter.SeekGE(head)
}
