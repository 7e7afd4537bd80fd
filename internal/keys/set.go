package keys

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
)

// Set is a set of keys, as spans.
//
// Invariant: the spans are not empty, rise, and neither overlap nor touch, so
// that equal sets have equal spans.
type Set []Span

// NewSet returns the set of all keys that lie in one of the spans. It shares
// their slices, not the list.
func NewSet(spans ...Span) Set {
	sorted := slices.DeleteFunc(slices.Clone(spans), Span.Empty)
	slices.SortFunc(sorted, func(a, b Span) int { return bytes.Compare(a.Start, b.Start) })
	var s Set
	for _, next := range sorted {
		if n := len(s); n > 0 && (s[n-1].Unbounded() || bytes.Compare(next.Start, s[n-1].End) <= 0) {
			if compareEnds(next.End, s[n-1].End) > 0 {
				s[n-1].End = next.End
			}
			continue
		}
		s = append(s, next)
	}
	return s
}

// Contains reports whether key lies in s.
func (s Set) Contains(key []byte) bool {
	after := sort.Search(len(s), func(i int) bool { return bytes.Compare(s[i].Start, key) > 0 })
	return after > 0 && s[after-1].Contains(key)
}

// Covers reports whether all keys of span lie in s.
func (s Set) Covers(span Span) bool {
	if span.Empty() {
		return true
	}
	after := sort.Search(len(s), func(i int) bool { return bytes.Compare(s[i].Start, span.Start) > 0 })
	return after > 0 && s[after-1].Covers(span)
}

// Overlaps reports whether some key of span lies in s.
func (s Set) Overlaps(span Span) bool {
	if span.Empty() {
		return false
	}
	// Of the spans that begin below the end of span the last reaches farthest.
	below := len(s)
	if !span.Unbounded() {
		below = sort.Search(len(s), func(i int) bool { return bytes.Compare(s[i].Start, span.End) >= 0 })
	}
	return below > 0 && s[below-1].Overlaps(span)
}

// AppendSet appends the encoding of s to dst and returns the result.
func AppendSet(dst []byte, s Set) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	for _, span := range s {
		dst = AppendEscaped(dst, span.Start)
		dst = AppendEscaped(dst, span.End)
	}
	return dst
}

// CutSet reads what AppendSet wrote at the front of src and returns it with what
// follows. The set has slices of its own.
func CutSet(src []byte) (s Set, rest []byte, err error) {
	count, n := binary.Uvarint(src)
	if n <= 0 || count > uint64(len(src)) {
		return nil, nil, ErrEncoding
	}
	src = src[n:]
	for range count {
		var span Span
		if span.Start, src, err = Unescape(nil, src); err != nil {
			return nil, nil, err
		}
		if span.End, src, err = Unescape(nil, src); err != nil {
			return nil, nil, err
		}
		s = append(s, span)
	}
	return s, src, nil
}
