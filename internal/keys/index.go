package keys

import (
	"bytes"
	"cmp"

	"github.com/tidwall/btree"
)

// Index finds what was entered with spans by the keys that these have. Single keys are found without
// a look at the others; of other spans each is looked at. An index may be read from several sides while nobody
// changes it. A copy shares what neither has changed since.
type Index[T any] struct {
	points, ranges *btree.BTreeG[*Entry[T]]
	// last is the newest entry's seq.
	last uint64
}

// Entry is a span and what was entered with it. It is immutable.
type Entry[T any] struct {
	span  Span
	value T
	// seq tells apart what was entered with spans of the same start.
	seq uint64
}

// indexDegree is that of the trees: small, so that little is copied where copies are made often.
const indexDegree = 16

// NewIndex returns an index of nothing.
func NewIndex[T any]() *Index[T] {
	tree := func() *btree.BTreeG[*Entry[T]] {
		return btree.NewBTreeGOptions(func(a, b *Entry[T]) bool {
			return cmp.Or(bytes.Compare(a.span.Start, b.span.Start), cmp.Compare(a.seq, b.seq)) < 0
		}, btree.Options{Degree: indexDegree, NoLocks: true})
	}
	return &Index[T]{points: tree(), ranges: tree()}
}

// Copy returns a copy. It counts as a change.
func (x *Index[T]) Copy() *Index[T] {
	return &Index[T]{points: x.points.Copy(), ranges: x.ranges.Copy(), last: x.last}
}

// Add enters v with a span, until Remove of what it returns. It shares the span's slices.
func (x *Index[T]) Add(span Span, v T) *Entry[T] {
	x.last++
	e := &Entry[T]{span: span, value: v, seq: x.last}
	x.of(e).Set(e)
	return e
}

// Remove undoes Add.
func (x *Index[T]) Remove(e *Entry[T]) { x.of(e).Delete(e) }

func (x *Index[T]) of(e *Entry[T]) *btree.BTreeG[*Entry[T]] {
	if e.span.IsPoint() {
		return x.points
	}
	return x.ranges
}

// Find calls fn for what was entered with spans that have a key of span, until fn returns true, and reports
// whether it did.
func (x *Index[T]) Find(span Span, fn func(T) bool) (found bool) {
	if span.Empty() {
		return false
	}
	if x.points.Len() > 0 {
		x.points.Ascend(&Entry[T]{span: span}, func(e *Entry[T]) bool {
			if !span.Contains(e.span.Start) {
				return false
			}
			found = fn(e.value)
			return !found
		})
	}
	if !found && x.ranges.Len() > 0 {
		x.ranges.Scan(func(e *Entry[T]) bool {
			found = e.span.Overlaps(span) && fn(e.value)
			return !found
		})
	}
	return found
}
