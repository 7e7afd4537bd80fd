package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A state is read from the current versions and what has changed since if there were
// no more changes than fewChanges and one for changesPart keys of the span: to look
// up what a key was costs about as much as to read on over so many versions.
const (
	fewChanges  = 16
	changesPart = 8
)

// changedSince returns, in order, the keys in span with changes above revision rev. It
// returns false if there are more than most changes, wherever they are.
func (r *reader) changedSince(ctx context.Context, span keys.Span, rev int64, most int) (changed [][]byte, ok bool, err error) {
	h, err := openHistory(r.db, r.layout, stamp{rev: rev + 1}, r.top)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = closeAfter(h, err) }()
	s := slab{rest: math.MaxInt}
	for n := 1; h.next(); n++ {
		if n > most {
			return nil, false, nil
		}
		if n%ctxInterval == 0 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		if span.Contains(h.key) {
			changed = append(changed, s.clone(h.key))
		}
	}
	slices.SortFunc(changed, bytes.Compare)
	return slices.CompactFunc(changed, bytes.Equal), true, h.err
}

// findBehind gives c the versions in span as of revision rev, since which the keys
// in changed and no others have changed.
func (r *reader) findBehind(ctx context.Context, span keys.Span, rev int64, changed [][]byte, c *pastCollector) (err error) {
	iter, err := r.db.NewIter(r.layout.versionBounds())
	if err != nil {
		return fmt.Errorf("read past: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	f := newForward(iter)
	// then takes the next of the changed keys as it was.
	then := func() error {
		v, err := r.versionAt(&f, changed[0], rev)
		if err != nil {
			return fmt.Errorf("read past of %q: %w", changed[0], err)
		}
		if !v.rec.dead {
			c.past(v)
		}
		changed = changed[1:]
		return nil
	}
	// What has not changed is counted at once.
	c.count = r.count(span)
	for _, key := range changed {
		if r.get(key) != nil {
			c.count--
		}
	}
	n := 0
	r.ascend(span, func(it *item) bool {
		if n++; n%ctxInterval == 0 {
			err = ctx.Err()
		}
		for err == nil && len(changed) > 0 && bytes.Compare(changed[0], it.key) < 0 {
			err = then()
		}
		switch {
		case err != nil:
		case len(changed) > 0 && bytes.Equal(changed[0], it.key):
			err = then()
		default:
			c.current(it)
		}
		return err == nil && !c.full()
	})
	for err == nil && len(changed) > 0 {
		err = then()
	}
	return err
}

// versionAt returns the newest version of key up to revision rev, a dead one if there
// is none. It is valid until f moves.
func (r *reader) versionAt(f *forward, key []byte, rev int64) (*pastVersion, error) {
	r.buf = r.layout.appendVersion(r.buf[:0], key, rev, maxSub)
	head := r.buf[:len(r.buf)-stampLen]
	v := &pastVersion{key: key, rec: record{dead: true}}
	if !f.to(r.buf) {
		return v, f.Error()
	}
	k := f.Key()
	if len(k) != len(r.buf) || !bytes.HasPrefix(k, head) {
		return v, nil
	}
	v.at = stampDesc(k[len(head):])
	b, err := f.ValueAndErr()
	if err != nil {
		return nil, err
	}
	v.rec, err = decodeRecord(b)
	return v, err
}
