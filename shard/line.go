package shard

import (
	"slices"
	"sync"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
)

// line is the Prepares that a leader has been given and that have neither applied nor failed, the oldest
// first. Of those for the same keys one at a time is proposed, and of those that wait the oldest is
// next: else young ones that come from near would always be there before an old one that comes
// from far, as nobody has a place behind what a transaction holds.
type line struct {
	mu sync.Mutex
	// in is protected by mu, with proposed of all that are in it.
	in []*inLine
}

// inLine is one Prepare.
type inLine struct {
	prepare *commit.Prepare
	// proposed is set when it is on its way to the log.
	proposed bool
}

// enter lets a Prepare in. It must leave.
func (l *line) enter(p *commit.Prepare) *inLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &inLine{prepare: p}
	i, _ := slices.BinarySearchFunc(l.in, p.Age, func(o *inLine, age commit.Age) int { return o.prepare.Age.Compare(age) })
	l.in = slices.Insert(l.in, i, w)
	return w
}

// leave lets a Prepare out, and reports whether others are in the line, who may be next now.
func (l *line) leave(w *inLine) (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.in, w); i >= 0 {
		l.in = slices.Delete(l.in, i, i+1)
	}
	return len(l.in) > 0
}

// next reports whether a Prepare is to be proposed now, and marks it so: nothing else in the line is that
// it would have to wait for, and free holds. What has left the line since is seen by free.
func (l *line) next(w *inLine, free func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	older := true // than w
	for _, o := range l.in {
		if o == w {
			older = false
		} else if (older || o.proposed) && w.meets(o) {
			return false
		}
	}
	w.proposed = free()
	return w.proposed
}

// behind reports whether a Prepare waits for an older one.
func (l *line) behind(w *inLine) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.in {
		if o == w {
			return false
		}
		if w.meets(o) {
			return true
		}
	}
	return false
}

// meets reports whether two Prepares can't both hold what they are for.
func (w *inLine) meets(o *inLine) bool {
	overlap := func(a, b keys.Set) bool { return slices.ContainsFunc(a, b.Overlaps) }
	return overlap(w.prepare.Writes, o.prepare.Writes) || overlap(w.prepare.Writes, o.prepare.Reads) || overlap(w.prepare.Reads, o.prepare.Writes)
}
