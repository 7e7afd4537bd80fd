package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// minWalk is the number of values from which on one pass over storage costs less
// than looking each of them up.
const minWalk = 4

// values returns the values of items, in their order. They must not be changed.
func (r *reader) values(ctx context.Context, items []*item) ([][]byte, error) {
	values := make([][]byte, len(items))
	var missing []int
	size := 0
	for i, it := range items {
		if v, ok := inMemory(it); ok {
			values[i] = v
			continue
		}
		if missing == nil {
			missing = make([]int, 0, len(items)-i)
		}
		missing = append(missing, i)
		size += int(it.size)
	}
	if len(missing) >= minWalk {
		byKey := func(a, b int) int { return bytes.Compare(items[a].key, items[b].key) }
		if !slices.IsSortedFunc(missing, byKey) {
			slices.SortFunc(missing, byKey)
		}
		return values, r.walkValues(ctx, items, missing, values, size)
	}
	for _, i := range missing {
		v, err := r.loadValue(items[i])
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}

// walkValues reads the values of those of items that missing names, in key order,
// into values. Together they have size bytes.
func (r *reader) walkValues(ctx context.Context, items []*item, missing []int, values [][]byte, size int) (err error) {
	opts := r.layout.versionBounds()
	opts.LowerBound = r.layout.appendVersions(nil, items[missing[0]].key)
	iter, err := r.db.NewIter(opts)
	if err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	f := newForward(iter)
	s := slab{rest: size}
	for n, i := range missing {
		if n%ctxInterval == ctxInterval-1 && ctx.Err() != nil {
			return ctx.Err()
		}
		it := items[i]
		r.buf = r.layout.appendVersion(r.buf[:0], it.key, it.mod, it.sub)
		if !f.to(r.buf) || !bytes.Equal(f.Key(), r.buf) {
			if err := f.Error(); err != nil {
				return fmt.Errorf("read values: %w", err)
			}
			return fmt.Errorf("read value of %q at %d: no version: %w", it.key, it.mod, ErrCorrupt)
		}
		b, err := f.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read value of %q at %d: %w", it.key, it.mod, err)
		}
		v, err := valueOf(it, b)
		if err != nil {
			return err
		}
		values[i] = s.clone(v)
	}
	return nil
}

// value returns the value of version it. The result must not be changed.
func (r *reader) value(it *item) ([]byte, error) {
	if v, ok := inMemory(it); ok {
		return v, nil
	}
	return r.loadValue(it)
}

// inMemory returns the value of version it if that needs no reading.
func inMemory(it *item) (value []byte, ok bool) {
	return it.value, it.value != nil || it.size == 0
}

// loadValue looks the value of version it up in Pebble.
func (r *reader) loadValue(it *item) (value []byte, err error) {
	r.buf = r.layout.appendVersion(r.buf[:0], it.key, it.mod, it.sub)
	b, closer, err := r.db.Get(r.buf)
	if err != nil {
		return nil, fmt.Errorf("read value of %q at %d: %w", it.key, it.mod, err)
	}
	defer func() { err = closeAfter(closer, err) }()
	v, err := valueOf(it, b)
	return bytes.Clone(v), err
}

// valueOf returns the value in b, the record of version it.
func valueOf(it *item, b []byte) ([]byte, error) {
	rec, err := decodeRecord(b)
	if err != nil {
		return nil, fmt.Errorf("read value of %q at %d: %w", it.key, it.mod, err)
	}
	if len(rec.value) != int(it.size) {
		return nil, fmt.Errorf("read value of %q at %d: %d bytes, not %d: %w", it.key, it.mod, len(rec.value), it.size, ErrCorrupt)
	}
	return rec.value, nil
}

// slabSize is how much memory a slab takes at a time.
const slabSize = 32 << 10

// slab makes copies that lie side by side, so that many small ones take few
// allocations. What is kept of one keeps those beside it.
type slab struct {
	free []byte
	// rest is how many bytes are still to be copied at the most.
	rest int
}

// clone returns a copy of b.
func (s *slab) clone(b []byte) []byte {
	if len(b) > slabSize/4 {
		s.rest -= len(b)
		return bytes.Clone(b)
	}
	if len(b) > cap(s.free)-len(s.free) {
		s.free = make([]byte, 0, max(len(b), min(s.rest, slabSize)))
	}
	s.rest -= len(b)
	n := len(s.free)
	s.free = append(s.free, b...)
	return s.free[n:len(s.free):len(s.free)]
}
