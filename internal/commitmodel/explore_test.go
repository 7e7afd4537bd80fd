package commitmodel

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// verdict is what an exploration has found.
type verdict struct {
	states, transitions int
	depth               int
	// bad is the promise that was broken, "" if all held, and trace the shortest way there.
	bad   string
	trace []string
}

func (v *verdict) String() string {
	return fmt.Sprintf("%s\n  %s", v.bad, strings.Join(v.trace, "\n  "))
}

// node is a state that has been met: its fingerprint, and whence it was met first.
type node struct {
	mark   [2]uint64
	parent uint32
	act    action
}

// met is the set of all states that have been met.
type met struct {
	seeds [2]maphash.Seed
	nodes []node
	// table has 1 + the place of a node, by its fingerprint, with open addressing.
	table []uint32
}

func newMet() *met {
	return &met{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, table: make([]uint32, 1<<12)}
}

// add notes a state and reports whether it is new. Two states with one fingerprint of 128
// bits would be taken for one.
func (v *met) add(s *state, parent uint32, act action) bool {
	mark := v.fingerprint(s)
	if 2*len(v.nodes) >= len(v.table) {
		v.grow()
	}
	at := v.slot(mark)
	if v.table[at] != 0 {
		return false
	}
	v.nodes = append(v.nodes, node{mark, parent, act})
	v.table[at] = uint32(len(v.nodes))
	return true
}

func (v *met) fingerprint(s *state) [2]uint64 {
	return [2]uint64{maphash.Comparable(v.seeds[0], *s), maphash.Comparable(v.seeds[1], *s)}
}

// place returns how many states were met before one that has been.
func (v *met) place(s *state) int { return int(v.table[v.slot(v.fingerprint(s))]) - 1 }

// slot returns where a fingerprint is in the table, or belongs.
func (v *met) slot(mark [2]uint64) uint64 {
	mask := uint64(len(v.table) - 1)
	at := mark[0] & mask
	for v.table[at] != 0 && v.nodes[v.table[at]-1].mark != mark {
		at = (at + 1) & mask
	}
	return at
}

func (v *met) grow() {
	v.table = make([]uint32, 2*len(v.table))
	for n := range v.nodes {
		v.table[v.slot(v.nodes[n].mark)] = uint32(n + 1)
	}
}

// initial returns the states that a model begins in: one, or one for each order of ages.
func (m *model) initial() (all []state) {
	ages := make([]uint8, len(m.wide)+len(m.narrow))
	for i := range ages {
		ages[i] = uint8(i)
	}
	for _, ages := range orders(ages, m.ages) {
		s := state{left: m.faults}
		for x := range m.wide {
			s.wide[x].age = ages[x]
		}
		for w := range m.narrow {
			s.narrow[w].age = ages[len(m.wide)+w]
		}
		all = append(all, s)
	}
	return all
}

// orders returns all orders of ages, or the one given.
func orders(ages []uint8, all bool) [][]uint8 {
	if !all || len(ages) < 2 {
		return [][]uint8{ages}
	}
	var found [][]uint8
	for i := range ages {
		rest := slices.Delete(slices.Clone(ages), i, i+1)
		for _, order := range orders(rest, true) {
			found = append(found, append([]uint8{ages[i]}, order...))
		}
	}
	return found
}

// explore goes through all states that a model can come to, breadth first, until one
// breaks a promise; waiting for ever counts where waits is set.
func (m *model) explore(waits bool) *verdict {
	v, seen := &verdict{}, newMet()
	type entry struct {
		s  state
		at uint32
	}
	var now, next []entry
	for _, s := range m.initial() {
		if seen.add(&s, 0, action{}) {
			now = append(now, entry{s, uint32(len(seen.nodes))})
		}
	}
	roots := uint32(len(now))
	var acts []action
	for ; len(now) > 0; now, next = next, now[:0] {
		for i := range now {
			e := &now[i]
			acts = m.actions(&e.s, acts[:0])
			stuck := waits
			for _, act := range acts {
				stuck = stuck && !act.progress()
				after := e.s
				bad := m.do(&after, act)
				v.transitions++
				if bad != "" {
					return v.found(m, seen, roots, e.at, bad, act)
				}
				m.canonical(&after)
				if seen.add(&after, e.at, act) {
					next = append(next, entry{after, uint32(len(seen.nodes))})
				}
			}
			if stuck {
				if bad := m.unfinished(&e.s); bad != "" {
					return v.found(m, seen, roots, e.at, bad)
				}
			}
		}
		v.depth++
	}
	v.states = len(seen.nodes)
	return v
}

// found fills in the way to a broken promise: to a node that was met, and what was done there.
func (v *verdict) found(m *model, seen *met, roots, at uint32, bad string, last ...action) *verdict {
	acts := slices.Clone(last)
	for at > roots {
		acts = append(acts, seen.nodes[at-1].act)
		at = seen.nodes[at-1].parent
	}
	slices.Reverse(acts)
	s := m.initial()[at-1]
	again := ""
	for _, act := range acts {
		v.trace = append(v.trace, m.describe(&s, act))
		again = m.do(&s, act)
	}
	if len(last) == 0 {
		again = m.unfinished(&s)
	}
	if promise, _, _ := strings.Cut(bad, ":"); !strings.HasPrefix(again, promise) {
		panic(fmt.Sprintf("%s, and %q when the same is done without canonical states", bad, again))
	}
	v.states, v.bad = len(seen.nodes), again
	return v
}

// unfinished says who waits for ever in a state in which nothing more happens by itself.
func (m *model) unfinished(s *state) string {
	t := step{model: m, s: s}
	for p := range m.shards() {
		sh := &s.shards[p]
		for i, b := range sh.holds {
			if b != 0 {
				t.fail(liveness, "%s holds on shard %d for ever", m.name(i), p)
			}
		}
		if sh.line[0] != noItem || sh.ready[0].item != noItem {
			t.fail(liveness, "commands wait on shard %d for ever", p)
		}
	}
	for x := range m.wide {
		if s.wide[x].answer == noAnswer {
			t.fail(liveness, "T%d is not answered", x+1)
		}
	}
	for i := range m.tries * len(m.wide) {
		_, w := m.of(i)
		if me := &s.ids[i]; me.n != 0 || me.committed != 0 && me.finished != w.keys().shards()&^(1<<w.home()) {
			t.fail(liveness, "%s is not forgotten", m.name(i))
		}
	}
	for w := range m.narrow {
		if s.narrow[w].phase != writeDone {
			t.fail(liveness, "write %d is not answered", w+1)
		}
	}
	for r := range m.reads {
		if s.reads[r].done != m.reads[r].shards() {
			t.fail(liveness, "read %d is not answered", r+1)
		}
	}
	if m.lease && s.lease.phase != leaseEnded {
		t.fail(liveness, "the lease does not end")
	}
	return t.bad
}

// endless looks for a run that goes on for ever, depth first, and returns its states' number.
// Faults have budgets, so that it would be one of progress.
func (m *model) endless() (found bool, states int) {
	seen := newMet()
	var open []bool // by the place of a node
	var visit func(s *state) bool
	visit = func(s *state) bool {
		if !seen.add(s, 0, action{}) {
			return open[seen.place(s)]
		}
		at := len(open)
		open = append(open, true)
		for _, act := range m.actions(s, nil) {
			after := *s
			m.do(&after, act)
			m.canonical(&after)
			if visit(&after) {
				return true
			}
		}
		open[at] = false
		return false
	}
	for _, s := range m.initial() {
		if visit(&s) {
			return true, len(open)
		}
	}
	return false, len(open)
}
