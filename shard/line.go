package shard

import (
	"slices"
	"sync"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
)

// line is the Prepares that a leader has been given and that have neither applied nor failed. Of those for
// the same keys one at a time is proposed, and of those that wait the oldest is
// next: else young ones that come from near would always be there before an old one that comes
// from far, as nobody has a place behind what a transaction holds.
type line struct {
	mu sync.Mutex
	// in has those that are in it, by what they may write and what they read, and n is how many they are.
	// Protected by mu, with proposed of all.
	in *keys.Index[inLineFor]
	n  int
}

// inLine is one Prepare.
type inLine struct {
	prepare *commit.Prepare
	entries []*keys.Entry[inLineFor]
	// proposed is set when it is on its way to the log.
	proposed bool
}

// inLineFor says what a Prepare is for in the line.
type inLineFor struct {
	*inLine
	writes bool
}

func newLine() *line { return &line{in: keys.NewIndex[inLineFor]()} }

// enter lets a Prepare in. It must leave.
func (l *line) enter(p *commit.Prepare) *inLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &inLine{prepare: p}
	for _, span := range p.Reads {
		w.entries = append(w.entries, l.in.Add(span, inLineFor{inLine: w}))
	}
	for _, span := range p.Writes {
		w.entries = append(w.entries, l.in.Add(span, inLineFor{inLine: w, writes: true}))
	}
	l.n++
	return w
}

// leave lets a Prepare out, and reports whether others are in the line, who may be next now.
func (l *line) leave(w *inLine) (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range w.entries {
		l.in.Remove(e)
	}
	l.n--
	return l.n > 0
}

// next reports whether a Prepare is to be proposed now, and marks it so: nothing else in the line is that
// it would have to wait for, and free holds. What has left the line since is seen by free.
func (l *line) next(w *inLine, free func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.proposed = !l.meetsLocked(w, func(o *inLine) bool { return o.proposed || o.older(w) }) && free()
	return w.proposed
}

// behind reports whether a Prepare waits for an older one.
func (l *line) behind(w *inLine) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meetsLocked(w, func(o *inLine) bool { return o.older(w) })
}

// meetsLocked reports whether which is true of another Prepare that can't hold what it is for while w does. l.mu
// must be held.
func (l *line) meetsLocked(w *inLine, which func(*inLine) bool) bool {
	return slices.ContainsFunc(w.prepare.Writes, func(span keys.Span) bool {
		return l.in.Find(span, func(o inLineFor) bool { return o.inLine != w && which(o.inLine) })
	}) || slices.ContainsFunc(w.prepare.Reads, func(span keys.Span) bool {
		return l.in.Find(span, func(o inLineFor) bool { return o.inLine != w && o.writes && which(o.inLine) })
	})
}

func (w *inLine) older(than *inLine) bool { return w.prepare.Age.Compare(than.prepare.Age) < 0 }
