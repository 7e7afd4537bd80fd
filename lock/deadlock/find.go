package deadlock

import (
	"cmp"
	"slices"
)

// Deadlock is a circle of clients that wait for each other.
type Deadlock struct {
	// Cycle are their waits: each for a place of the next one's client, and the last for one of the
	// first's, which is the youngest.
	Cycle []Wait
	// Proof are waits that show why none of the cycle can end: with each the places before it
	// that stay, and no more of them than it takes. It has all waits of their clients.
	Proof []Wait
}

// Find returns the deadlocks among waits: as many as there are waits that must be ended so
// that none is left. Of those that wait for nobody but each other it is always the youngest, by create
// revision, which is the first of its cycle. Who waits behind a deadlock without being part of it
// is in none.
func Find(waits []Wait) []Deadlock {
	g := newGraph(waits)
	var found []Deadlock
	for {
		g.settle()
		stuck := g.among()
		if stuck == nil {
			return found
		}
		d := g.deadlock(g.cycle(slices.MaxFunc(stuck, older)))
		found = append(found, d)
		g.end(d.Cycle[0].Place)
	}
}

// older compares the ages of waits.
func older(a, b *wait) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.Key, b.Key))
}

// graph is who waits for whom.
type graph struct {
	waits []*wait
	// clients are the waits by client; behind are those that have a place of a client before them.
	clients, behind map[string][]*wait
	// open are those that are to be looked at again.
	open []*wait
}

// wait is a Wait in the graph.
type wait struct {
	Wait

	// ends is set when the wait can end; over when it is taken to have ended.
	ends, over bool
	// number and low are those of the search for who waits for each other: the number of the wait,
	// from 1, and the lowest that it reaches.
	number, low int
}

func newGraph(waits []Wait) *graph {
	g := &graph{clients: make(map[string][]*wait), behind: make(map[string][]*wait)}
	for _, told := range waits {
		w := &wait{Wait: told}
		g.waits = append(g.waits, w)
		g.clients[w.Client] = append(g.clients[w.Client], w)
		for _, b := range w.Before {
			g.behind[b.Client] = append(g.behind[b.Client], w)
		}
	}
	g.open = slices.Clone(g.waits)
	return g
}

// settle finds out which waits can end. What is left is the largest set of waits that hold up each
// other.
func (g *graph) settle() {
	for len(g.open) > 0 {
		w := g.open[len(g.open)-1]
		g.open = g.open[:len(g.open)-1]
		if !w.ends && len(g.blockers(w)) == 0 {
			w.ends = true
			g.open = append(g.open, g.behind[w.Client]...)
		}
	}
}

// end takes the waits with a place for ended.
func (g *graph) end(p Place) {
	for _, w := range g.waits {
		if w.Place == p {
			w.ends, w.over = true, true
			g.open = append(g.open, g.behind[w.Client]...)
		}
	}
}

// blockers returns the places that hold a wait up, none if it can end: each that must go and
// stays, and those of the semaphore if they leave too few permits together.
func (g *graph) blockers(w *wait) []Before {
	permits := 0
	staying := make([]Before, 0, len(w.Before))
	for _, b := range w.Before {
		if len(g.reasons(w, b)) > 0 {
			permits += b.Permits
			staying = append(staying, b)
		}
	}
	if permits > w.Room {
		return staying
	}
	return slices.DeleteFunc(staying, func(b Before) bool { return b.Permits > 0 })
}

// reasons returns the waits of a client for which its place before a wait stays; none if it may go.
func (g *graph) reasons(w *wait, b Before) (all []*wait) {
	if b.Client == w.Client {
		return nil
	}
	for _, own := range g.clients[b.Client] {
		switch {
		case own.over, own.Lock == w.Lock && own.Place != b.Place:
		case own.ends:
			return nil
		default:
			all = append(all, own)
		}
	}
	return all
}

// next calls fn with the waits that hold a wait up, and the place by which each does.
func (g *graph) next(w *wait, fn func(*wait, Before)) {
	for _, b := range g.blockers(w) {
		for _, reason := range g.reasons(w, b) {
			fn(reason, b)
		}
	}
}

// among returns waits of which each is held up by all others, and by nobody else; nil if all can
// end. A wait that can't end has such ones before it.
func (g *graph) among() []*wait {
	for _, w := range g.waits {
		w.number, w.low = 0, 0
	}
	for _, w := range g.waits {
		if !w.ends {
			t := tarjan{g: g}
			t.visit(w)
			return t.found
		}
	}
	return nil
}

// tarjan is Tarjan's search for strongly connected components. The first that it finds reaches no
// other.
type tarjan struct {
	g     *graph
	count int
	stack []*wait
	found []*wait
}

func (t *tarjan) visit(w *wait) {
	t.count++
	w.number, w.low = t.count, t.count
	t.stack = append(t.stack, w)
	t.g.next(w, func(o *wait, _ Before) {
		if t.found == nil && o.number == 0 {
			t.visit(o)
		}
		w.low = min(w.low, o.low)
	})
	if t.found == nil && w.low == w.number {
		t.found = slices.Clone(t.stack[slices.Index(t.stack, w):])
	}
}

// step is a wait on the way from another, and the place by which it holds up the one before it.
type step struct {
	*wait

	by   Before
	from *step
}

// cycle returns the shortest way from a wait that is held up by itself to itself.
func (g *graph) cycle(start *wait) []*step {
	seen := make(map[*wait]bool)
	var last *step
	for way := []*step{{wait: start}}; last == nil; way = way[1:] {
		at := way[0]
		g.next(at.wait, func(o *wait, by Before) {
			if last != nil || seen[o] {
				return
			}
			seen[o] = true
			way = append(way, &step{o, by, at})
			if o == start {
				last = way[len(way)-1]
			}
		})
	}
	var steps []*step
	for s := last; s.from != nil; s = s.from {
		steps = append(steps, s)
	}
	slices.Reverse(steps)
	return steps
}

// deadlock returns the deadlock of a cycle, whose last step leads to the youngest.
func (g *graph) deadlock(steps []*step) Deadlock {
	var d Deadlock
	by := make(map[*wait]Before, len(steps))
	for _, s := range steps {
		by[s.from.wait] = s.by
		d.Cycle = append(d.Cycle, s.from.Wait)
	}
	open := []*wait{steps[0].from.wait}
	known := map[*wait]bool{open[0]: true}
	for ; len(open) > 0; open = open[1:] {
		w := open[0]
		shown := w.Wait
		shown.Before = g.enough(w, by)
		d.Proof = append(d.Proof, shown)
		for _, b := range shown.Before {
			for _, reason := range g.reasons(w, b) {
				if !known[reason] {
					known[reason] = true
					open = append(open, reason)
				}
			}
		}
	}
	return d
}

// enough returns as many of the places that hold a wait up as it takes, with that by which the
// next of the cycle does.
func (g *graph) enough(w *wait, by map[*wait]Before) []Before {
	blockers := g.blockers(w)
	first := 0
	if b, ok := by[w]; ok {
		first = slices.Index(blockers, b)
	} else if must := slices.IndexFunc(blockers, func(b Before) bool { return b.Permits == 0 }); must > 0 {
		first = must
	}
	chosen := []Before{blockers[first]}
	if blockers[first].Permits == 0 {
		return chosen
	}
	permits := blockers[first].Permits
	for i, b := range blockers {
		if permits > w.Room {
			break
		}
		if i != first && b.Permits > 0 {
			chosen, permits = append(chosen, b), permits+b.Permits
		}
	}
	return chosen
}
