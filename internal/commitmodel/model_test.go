package commitmodel

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// space is a scenario that is gone through as a whole.
type space struct {
	name     string
	scenario scenario
}

// small spaces are gone through by every run of the tests.
var small = []space{
	{"two, nothing fails", scenario{wide: []wide{t1, t2}, tries: 3, ages: true}},
	{"two, a node fails", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{crashes: 1}}},
	{"two, a leader fails", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{changes: 1}}},
	{"two, a message is lost", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{lost: 1}}},
	{"two, a message is doubled", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{doubled: 1}}},
	{"two, a coordinator is impatient", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{timeouts: 1}}},
	{"two, a home is impatient", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{suspects: 1}}},
	{"two, a replica jumps", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{jumps: 1}}},
	{"two of one node, which fails", scenario{wide: []wide{t1, {node: 0, writes: keyB | keyC}}, tries: 2, faults: faults{crashes: 1}}},
	{"one, all fails", scenario{wide: []wide{t1}, tries: 2, faults: faults{crashes: 1, changes: 1, lost: 1, doubled: 1, timeouts: 1, suspects: 1, jumps: 1}}},
	{"one, messages are doubled", scenario{wide: []wide{t1}, tries: 2, faults: faults{changes: 1, doubled: 3, suspects: 1}}},
	{"three, nothing fails", scenario{wide: []wide{t1, t2, t3}, tries: 1, ages: true}},
	{"three, a node fails", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{crashes: 1}}},
	{"three, a leader fails", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{changes: 1}}},
	{"three, a message is doubled", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{doubled: 1}}},
	{"three, a home is impatient", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{suspects: 1}}},
	{"two, a write and a read", scenario{wide: []wide{t1, t2}, narrow: []narrow{{writes: keyB}}, reads: []keySet{keyA | keyC}, tries: 1}},
	{"one, two writes and a read", scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyB | keyY}, {reads: keyB, writes: keyY}}, reads: []keySet{keyB | keyY}, tries: 1, ages: true}},
	{"one and a write, with faults", scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyB}}, tries: 2, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"one, a right is taken away", scenario{wide: []wide{t1}, tries: 2, fence: true, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"one that writes on one shard alone, and a write", scenario{wide: []wide{t3}, narrow: []narrow{{writes: keyA}}, reads: []keySet{keyZ}, tries: 2, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"one, a lease ends", scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyA}}, tries: 2, lease: true, ages: true, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"two, of which one puts at its home", scenario{wide: []wide{t4, t2}, tries: 3, ages: true}},
	{"two that meet at a home that one puts at", scenario{wide: []wide{t4, t5}, tries: 2, ages: true, faults: faults{changes: 1}}},
	{"two that meet at a home that one puts at, a node fails", scenario{wide: []wide{t4, t5}, tries: 2, faults: faults{crashes: 1}}},
	{"one that puts at its home, all fails", scenario{wide: []wide{t4}, tries: 2, faults: faults{crashes: 1, changes: 1, lost: 1, doubled: 1, timeouts: 1, suspects: 1, jumps: 1}}},
	{"one that puts at its home, messages are doubled", scenario{wide: []wide{t4, t4}, tries: 1, faults: faults{doubled: 2, suspects: 1}}},
	{"one that puts at its home, a write and a read", scenario{wide: []wide{t4}, narrow: []narrow{{writes: keyA | keyX}}, reads: []keySet{keyA | keyB}, tries: 2, ages: true, faults: faults{changes: 1}}},
	{"one that puts at its home, a right is taken away", scenario{wide: []wide{t4}, tries: 2, fence: true, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"two that put at a home each", scenario{wide: []wide{t4, t6}, tries: 3, ages: true}},
	{"two that put at a home each, a leader fails", scenario{wide: []wide{t4, t6}, tries: 2, faults: faults{changes: 1}}},
	{"two that put at a home each, a node fails", scenario{wide: []wide{t4, t6}, tries: 2, faults: faults{crashes: 1}}},
	{"two that put at a home each, a home is impatient", scenario{wide: []wide{t4, t6}, tries: 2, faults: faults{suspects: 1}}},
	{"two with a home each", scenario{wide: []wide{t1, t7}, tries: 2, ages: true, faults: faults{suspects: 1}}},
	{"two with a home each, a node fails", scenario{wide: []wide{t1, t7}, tries: 2, faults: faults{crashes: 1}}},
	{"crossed, writes between, a leader fails", scenario{wide: crossed, narrow: between, tries: 1, faults: faults{changes: 1}}},
}

// large spaces take minutes and gigabytes.
var large = []space{
	{"two, nodes, leaders and homes fail", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"two, messages are doubled and a home is impatient", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{doubled: 2, suspects: 1}}},
	{"two, messages are lost and doubled", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{changes: 1, lost: 1, doubled: 1}}},
	{"two, all are impatient", scenario{wide: []wide{t1, t2}, tries: 2, faults: faults{timeouts: 1, suspects: 1, jumps: 1}}},
	{"two, a write and a read, with faults", scenario{wide: []wide{t1, t2}, narrow: []narrow{{writes: keyB}}, reads: []keySet{keyA | keyC}, tries: 1, faults: faults{crashes: 1, changes: 1}}},
	{"three, nodes, leaders and homes fail", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{crashes: 1, changes: 1, suspects: 1}}},
	{"three, messages are lost and doubled", scenario{wide: []wide{t1, t2, t3}, tries: 1, faults: faults{lost: 1, doubled: 1}}},
	{"three that begin again", scenario{wide: []wide{t1, t2, t3}, tries: 2, ages: true}},
	{"three that begin again, a node fails", scenario{wide: []wide{t1, t2, t3}, tries: 2, faults: faults{crashes: 1}}},
	{"crossed, writes between, with retries", scenario{wide: crossed, narrow: between, tries: 2, ages: true}},
}

// largeEnv has the large spaces gone through too.
const largeEnv = "LATCHKEY_COMMITMODEL_LARGE"

// walked is what random runs go through: too much to be gone through as a whole.
var walked = scenario{
	wide: []wide{t1, t2, t3}, narrow: []narrow{{writes: keyA | keyX}, {reads: keyB, writes: keyY}, {writes: keyC}},
	reads: []keySet{keyA | keyB | keyC, keyB | keyY}, tries: 2, lease: true, ages: true,
	faults: faults{crashes: 1, changes: 2, lost: 2, doubled: 3, timeouts: 1, suspects: 2, jumps: 1},
}

// In no state of these spaces is a promise broken, and whoever waits is served in the end.
func TestSpaces(t *testing.T) {
	spaces := small
	switch {
	case os.Getenv(largeEnv) != "":
		spaces = large
	case testing.Short():
		spaces = small[1:3]
	}
	for _, sp := range spaces {
		t.Run(sp.name, func(t *testing.T) {
			v := sp.scenario.without().explore(true)
			if v.bad != "" {
				t.Fatal(v)
			}
			t.Logf("%d states, %d steps deep", v.states, v.depth)
		})
	}
}

// No run of these spaces goes on for ever, so that the ends which TestSpaces judges are
// all there are: who waits is served whatever the order of things.
func TestRunsEnd(t *testing.T) {
	spaces := append(slices.Clone(small[:5]), space{"two that put at a home each", scenario{wide: []wide{t4, t6}, tries: 2, ages: true}})
	if testing.Short() {
		spaces = small[1:3]
	}
	for _, sp := range spaces {
		t.Run(sp.name, func(t *testing.T) {
			found, states := sp.scenario.without().endless()
			if found {
				t.Fatalf("a run goes on for ever, found in %d states", states)
			}
			t.Logf("%d states", states)
		})
	}
}

// A younger transaction may wait for an older one with what it holds elsewhere, instead of giving it back.
func TestYoungerMayWait(t *testing.T) {
	spaces := []space{
		{"two", scenario{wide: []wide{t1, {node: 1, writes: keyA | keyB}}, tries: 3, ages: true}},
		{"three", scenario{wide: []wide{{writes: keyA | keyB}, {node: 1, writes: keyB | keyC}, {node: 2, writes: keyA | keyC}}, tries: 1, ages: true}},
		{"crossed, writes between", scenario{wide: crossed, narrow: between, tries: 1, ages: true}},
	}
	if testing.Short() {
		spaces = spaces[:1]
	}
	for _, sp := range spaces {
		t.Run(sp.name, func(t *testing.T) {
			v := sp.scenario.without(youngerGivesBack).explore(true)
			if v.bad != "" {
				t.Fatal(v)
			}
			t.Logf("%d states, %d steps deep", v.states, v.depth)
		})
	}
}

// walk is a random run.
type walk struct {
	acts []action
	bad  string
}

// walk goes on at random from one of the states until nothing more can happen, or a promise is
// broken. Faults are rare, so that they come at any time.
func (m *model) walk(begins []state, seed uint64) (w walk) {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := begins[rng.IntN(len(begins))]
	for acts := m.actions(&s, nil); len(acts) > 0; acts = m.actions(&s, acts[:0]) {
		act := acts[rng.IntN(len(acts))]
		if !act.progress() && rng.IntN(4) > 0 && slices.ContainsFunc(acts, action.progress) {
			continue
		}
		w.acts = append(w.acts, act)
		if w.bad = m.do(&s, act); w.bad != "" {
			return w
		}
	}
	w.bad = m.unfinished(&s)
	return w
}

// Random runs of more of everything break no promise, and come to an end.
func TestWalks(t *testing.T) {
	runs := uint64(10_000)
	if testing.Short() {
		runs = 500
	}
	steps := 0
	for _, fence := range []bool{false, true} {
		sc := walked
		sc.fence = fence
		m := sc.without()
		begins := m.initial()
		for seed := range runs {
			w := m.walk(begins, seed)
			if w.bad != "" {
				t.Fatalf("seed %d: %s\n%v", seed, w.bad, w.acts)
			}
			steps += len(w.acts)
		}
	}
	t.Logf("%d runs, %d steps", 2*runs, steps)
}
