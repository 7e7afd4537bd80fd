package mixed

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// judge returns what no order of grants can explain in a history. It must have ended.
func judge(h *history) []string {
	j := &verdict{found: slices.Clone(h.broken)}
	holds, looks := make(map[string][]hold), make(map[string][]look)
	for _, one := range h.holds {
		holds[one.lock] = append(holds[one.lock], one)
	}
	for _, one := range h.looks {
		looks[one.lock] = append(looks[one.lock], one)
	}
	for lock := range holds {
		of, seen := holds[lock], looks[lock]
		slices.SortFunc(of, func(a, b hold) int { return cmp.Or(cmp.Compare(a.token, b.token), a.told.Compare(b.told)) })
		j.tokens(of)
		j.turns(of)
		j.permits(of)
		j.asked(of, seen)
		j.places(of, seen)
		j.passed(of, seen)
	}
	return j.found
}

type verdict struct{ found []string }

func (j *verdict) violation(format string, args ...any) {
	j.found = append(j.found, fmt.Sprintf(format, args...))
}

// tokens: each grant has one of its own.
func (j *verdict) tokens(byToken []hold) {
	for i := range byToken {
		h := &byToken[i]
		if h.token <= 0 {
			j.violation("%s: no token: %v", h.lock, h)
		}
		if i > 0 && h.token == byToken[i-1].token {
			j.violation("%s: the same token twice: %v; %v", h.lock, &byToken[i-1], h)
		}
	}
}

// turns: tokens are create revisions, and so tell the order of places. Whoever is not to
// have the lock beside one with an earlier place is told that it has it when that one has it
// no more. This is exclusion, the order of asking and the growth of tokens at once: of two that
// may not hold together the one with the lower token holds first.
func (j *verdict) turns(byToken []hold) {
	// last is, for each mode, who of those with lower tokens has the lock for longest.
	last := make(map[mode]*hold)
	for i := range byToken {
		h := &byToken[i]
		for m, before := range last {
			if !m.beside(h.mode) && h.told.Before(before.until) {
				j.violation("%s: told too early: %v; before it is %v", h.lock, h, before)
			}
		}
		m := h.mode
		m.permits = 0
		if h.certain() && (last[m] == nil || h.until.After(last[m].until)) {
			last[m] = h
		}
	}
}

// permits: those who have permits of a semaphore have no more together than there are.
func (j *verdict) permits(all []hold) {
	type change struct {
		at      time.Time
		permits int
		hold    *hold
	}
	var changes []change
	for i := range all {
		if h := &all[i]; h.mode.of > 0 && h.certain() {
			changes = append(changes, change{h.told, h.mode.permits, h}, change{h.until, -h.mode.permits, h})
		}
	}
	// What is given up at a moment can be had at it.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.permits, b.permits)) })
	taken := 0
	for _, c := range changes {
		if taken += c.permits; taken > c.hold.mode.of && c.permits > 0 {
			j.violation("%s: %d permits at once: %v", c.hold.lock, taken, c.hold)
		}
	}
}

// asked: who begins to ask when a place has been seen comes behind that.
func (j *verdict) asked(all []hold, seen []look) {
	slices.SortFunc(seen, func(a, b look) int { return a.got.Compare(b.got) })
	// youngest is, for each look, the youngest place of it and of those before it.
	youngest := make([]int64, len(seen))
	for i, l := range seen {
		if n := len(l.places); n > 0 {
			youngest[i] = l.places[n-1]
		}
		if i > 0 {
			youngest[i] = max(youngest[i], youngest[i-1])
		}
	}
	for i := range all {
		h := &all[i]
		n, _ := slices.BinarySearchFunc(seen, h.asked, func(l look, t time.Time) int { return l.got.Compare(t) })
		if n > 0 && youngest[n-1] >= h.token {
			j.violation("%s: came before the place %d, which was seen before: %v", h.lock, youngest[n-1], h)
		}
	}
}

// places: while somebody certainly has a lock its place is there.
func (j *verdict) places(all []hold, seen []look) {
	slices.SortFunc(seen, func(a, b look) int { return a.sent.Compare(b.sent) })
	for i := range all {
		h := &all[i]
		for _, l := range seen[sentFrom(seen, h.told):] {
			if !l.sent.Before(h.until) {
				break
			}
			if l.got.Before(h.until) && !slices.Contains(l.places, h.token) {
				j.violation("%s: at %s there were %v, and not %v", h.lock, clock(l.got), l.places, h)
			}
		}
	}
}

// passed: who has a lock alone was the first, and nothing ever comes before what is there. So no
// earlier place can be seen after it was told, whether it still had the lock by then or not.
func (j *verdict) passed(all []hold, seen []look) {
	seen = slices.DeleteFunc(slices.Clone(seen), func(l look) bool { return len(l.places) == 0 })
	slices.SortFunc(seen, func(a, b look) int { return a.sent.Compare(b.sent) })
	// oldest is, for each look, which of it and of those behind it has the oldest place.
	oldest := make([]*look, len(seen))
	for i := len(seen) - 1; i >= 0; i-- {
		oldest[i] = &seen[i]
		if i+1 < len(seen) && oldest[i+1].places[0] < seen[i].places[0] {
			oldest[i] = oldest[i+1]
		}
	}
	for i := range all {
		h := &all[i]
		n := sentFrom(seen, h.told)
		if h.mode.exclusive() && n < len(seen) && oldest[n].places[0] < h.token {
			j.violation("%s: at %s there were still %v: %v", h.lock, clock(oldest[n].got), oldest[n].places, h)
		}
	}
}

// sentFrom returns the first of looks, in order, that was sent at a moment or later.
func sentFrom(seen []look, t time.Time) int {
	n, _ := slices.BinarySearchFunc(seen, t, func(l look, t time.Time) int { return l.sent.Compare(t) })
	return n
}
