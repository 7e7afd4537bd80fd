package mvcc

import (
	"math"
	"slices"

	"github.com/tidwall/btree"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// holds are the holds of a state, by transaction and by what they hold. A copy shares what neither has
// changed.
type holds struct {
	byID   btree.Map[string, *hold]
	bySpan *keys.Index[heldBy]
}

// heldBy says how a span is held.
type heldBy struct {
	*hold
	exclusively bool
}

func newHolds() *holds { return &holds{bySpan: keys.NewIndex[heldBy]()} }

func (hs *holds) copy() *holds { return &holds{byID: *hs.byID.Copy(), bySpan: hs.bySpan.Copy()} }

func (hs *holds) len() int { return hs.byID.Len() }

// add lets in a hold that is in no holds. remove lets it out.
func (hs *holds) add(h *hold) {
	hs.byID.Set(h.id, h)
	for _, span := range h.shared {
		h.entries = append(h.entries, hs.bySpan.Add(span, heldBy{hold: h}))
	}
	for _, span := range h.exclusive {
		h.entries = append(h.entries, hs.bySpan.Add(span, heldBy{hold: h, exclusively: true}))
	}
}

func (hs *holds) remove(h *hold) {
	hs.byID.Delete(h.id)
	for _, e := range h.entries {
		hs.bySpan.Remove(e)
	}
}

// settle sets from of the holds that are new since the state before.
func (hs *holds) settle(before *state) {
	hs.byID.Scan(func(id string, h *hold) bool {
		if h.from != 0 {
			return true
		}
		h.from = max(h.bound, before.resolved)
		if old, ok := before.holds.byID.Get(id); ok {
			h.from = old.from
		}
		return true
	})
}

// since reports whether a hold is from a revision above rev on.
func (hs *holds) since(rev int64) (found bool) {
	hs.byID.Scan(func(_ string, h *hold) bool {
		found = h.from > rev
		return !found
	})
	return found
}

// exclude reports whether some key of span is held exclusively.
func (hs *holds) exclude(span keys.Span) bool {
	return hs.bySpan.Find(span, func(h heldBy) bool { return h.exclusively })
}

// lowestBound returns the lowest bound of an exclusive hold, or the highest number.
func (hs *holds) lowestBound() int64 {
	bound := int64(math.MaxInt64)
	hs.byID.Scan(func(_ string, h *hold) bool {
		if len(h.exclusive) > 0 {
			bound = min(bound, h.bound)
		}
		return true
	})
	return bound
}

// from returns the lowest from of an exclusive hold on keys of spans, or on any without spans;
// the highest number if there is none.
func (hs *holds) from(spans []keys.Span) int64 {
	rev := int64(math.MaxInt64)
	if len(spans) == 0 {
		hs.byID.Scan(func(_ string, h *hold) bool {
			if len(h.exclusive) > 0 {
				rev = min(rev, h.from)
			}
			return true
		})
	}
	for _, span := range spans {
		hs.bySpan.Find(span, func(h heldBy) bool {
			if h.exclusively {
				rev = min(rev, h.from)
			}
			return false
		})
	}
	return rev
}

// meet calls fn for the holds that a command meets which reads and writes keys of these spans, perhaps more
// than once for each, until fn returns true, and reports whether it did. A command may neither write what is
// held, nor read what is held exclusively.
func (hs *holds) meet(reads, writes []keys.Span, fn func(*hold) bool) bool {
	return slices.ContainsFunc(writes, func(span keys.Span) bool {
		return hs.bySpan.Find(span, func(h heldBy) bool { return fn(h.hold) })
	}) || slices.ContainsFunc(reads, func(span keys.Span) bool {
		return hs.bySpan.Find(span, func(h heldBy) bool { return h.exclusively && fn(h.hold) })
	})
}

// met returns the ids of the holds that such a command meets.
func (hs *holds) met(reads, writes []keys.Span) (ids []string) {
	hs.meet(reads, writes, func(h *hold) bool {
		ids = append(ids, h.id)
		return false
	})
	slices.Sort(ids)
	return slices.Compact(ids)
}
