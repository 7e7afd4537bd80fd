package keys

import (
	"bytes"
	"fmt"
)

// Span is the half-open interval [Start, End) of keys. A Start of no bytes is
// the lowest key, an End of no bytes means that there is no upper bound; the
// zero Span therefore holds every key. Spans share the slices they are made
// from: nobody may change those while a span is in use.
type Span struct {
	Start, End []byte
}

// FromRange returns the span that etcd means by key and rangeEnd. The result
// shares both slices, except that a single key's end is a new one.
func FromRange(key, rangeEnd []byte) Span {
	switch {
	case len(rangeEnd) == 0:
		return Point(key)
	case IsFromKey(rangeEnd):
		return Span{Start: key}
	default:
		return Span{Start: key, End: rangeEnd}
	}
}

// IsFromKey reports whether rangeEnd is etcd's form for "every key from key on".
func IsFromKey(rangeEnd []byte) bool {
	return len(rangeEnd) == 1 && rangeEnd[0] == 0
}

// Point returns the span of one key.
func Point(key []byte) Span {
	return Span{Start: key, End: Next(key)}
}

// Next returns the lowest key above key, in a slice of its own.
func Next(key []byte) []byte {
	n := make([]byte, len(key)+1)
	copy(n, key)
	return n
}

// PrefixEnd returns the lowest key above all keys that begin with prefix, in a
// slice of its own, or nil when there is none: for an empty prefix and for one
// of 0xff bytes alone.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}

// Directory returns the part of key up to and including its last '/', which is
// empty when there is none. The result shares key's bytes.
func Directory(key []byte) []byte {
	return key[:bytes.LastIndexByte(key, '/')+1]
}

// RangeEnd returns the range_end that, with s.Start as the key, makes etcd mean
// s. The result may share s.End.
func (s Span) RangeEnd() []byte {
	switch {
	case len(s.End) == 0:
		return []byte{0}
	case s.IsPoint():
		return nil
	default:
		return s.End
	}
}

// Unbounded reports whether s has no upper bound.
func (s Span) Unbounded() bool { return len(s.End) == 0 }

// Empty reports whether s holds no key at all.
func (s Span) Empty() bool {
	return len(s.End) > 0 && bytes.Compare(s.Start, s.End) >= 0
}

// IsPoint reports whether s holds exactly one key, s.Start.
func (s Span) IsPoint() bool {
	n := len(s.Start)
	return len(s.End) == n+1 && s.End[n] == 0 && bytes.Equal(s.End[:n], s.Start)
}

// IsPrefix reports whether s holds exactly the keys that begin with s.Start.
func (s Span) IsPrefix() bool {
	last := len(s.Start) - 1
	for last >= 0 && s.Start[last] == 0xff {
		last--
	}
	if last < 0 {
		return len(s.End) == 0
	}
	return len(s.End) == last+1 && s.End[last] == s.Start[last]+1 &&
		bytes.Equal(s.End[:last], s.Start[:last])
}

// Contains reports whether key lies in s.
func (s Span) Contains(key []byte) bool {
	return bytes.Compare(key, s.Start) >= 0 && (len(s.End) == 0 || bytes.Compare(key, s.End) < 0)
}

// Covers reports whether every key of o lies in s.
func (s Span) Covers(o Span) bool {
	if o.Empty() {
		return true
	}
	return bytes.Compare(s.Start, o.Start) <= 0 && compareEnds(o.End, s.End) <= 0
}

// Overlaps reports whether some key lies in both s and o.
func (s Span) Overlaps(o Span) bool { return !s.Intersect(o).Empty() }

// Intersect returns the span of the keys that lie in both s and o. It shares
// their slices.
func (s Span) Intersect(o Span) Span {
	r := s
	if bytes.Compare(o.Start, r.Start) > 0 {
		r.Start = o.Start
	}
	if compareEnds(o.End, r.End) < 0 {
		r.End = o.End
	}
	return r
}

// Equal reports whether s and o have the same bounds.
func (s Span) Equal(o Span) bool {
	return bytes.Equal(s.Start, o.Start) && bytes.Equal(s.End, o.End)
}

// String returns s with quoted bounds.
func (s Span) String() string {
	if len(s.End) == 0 {
		return fmt.Sprintf("[%q, ∞)", s.Start)
	}
	return fmt.Sprintf("[%q, %q)", s.Start, s.End)
}

// compareEnds orders two upper bounds, of which one of no bytes is the highest.
func compareEnds(a, b []byte) int {
	switch {
	case len(a) == 0 && len(b) == 0:
		return 0
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	default:
		return bytes.Compare(a, b)
	}
}
