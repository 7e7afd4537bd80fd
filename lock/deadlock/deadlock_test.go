package deadlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parse returns the waits that a text tells of, one a line:
//
//	CLIENT waits for LOCK at REVISION [room N]: CLIENT at REVISION [N permits], ...
//
// Keys follow from locks and clients, calls from clients and revisions.
func parse(t *testing.T, text string) (waits []Wait) {
	t.Helper()
	for line := range strings.Lines(strings.TrimSpace(text)) {
		head, tail, _ := strings.Cut(strings.TrimSpace(line), ":")
		f := append(strings.Fields(head), make([]string, 8)...)
		rev, err := strconv.ParseInt(f[5], 10, 64)
		if err != nil {
			t.Fatal(line, err)
		}
		w := Wait{Client: f[0], Lock: f[3], Place: Place{f[3] + "/" + f[0], rev}, Calls: []string{fmt.Sprint(f[0], "#", rev)}}
		w.Room, _ = strconv.Atoi(f[7])
		for b := range strings.SplitSeq(tail, ",") {
			f := append(strings.Fields(b), make([]string, 4)...)
			if f[0] == "" {
				continue
			}
			rev, err := strconv.ParseInt(f[2], 10, 64)
			if err != nil {
				t.Fatal(line, err)
			}
			permits, _ := strconv.Atoi(f[3])
			w.Before = append(w.Before, Before{Place{w.Lock + "/" + f[0], rev}, f[0], permits})
		}
		waits = append(waits, w)
	}
	return waits
}

// names returns the cycles of deadlocks, as the clients in them.
func names(found []Deadlock) string {
	var all []string
	for _, d := range found {
		var cycle []string
		for _, w := range d.Cycle {
			cycle = append(cycle, w.Client)
		}
		all = append(all, strings.Join(cycle, " "))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestFind(t *testing.T) {
	for _, tc := range []struct{ name, waits, want string }{
		{"nobody waits", ``, ""},
		{"two clients and two locks", `
			a waits for m at 4: b at 2
			b waits for l at 3: a at 1`, "a b"},
		{"a client that waits for nobody", `
			a waits for m at 4: b at 2
			b waits for l at 3: c at 1`, ""},
		{"three clients", `
			a waits for m at 4: b at 2
			b waits for n at 6: c at 3
			c waits for l at 5: a at 1`, "b c a"},
		{"who waits behind a deadlock is not in it", `
			z waits for l at 9: a at 1
			a waits for m at 4: b at 2
			b waits for l at 3: a at 1`, "a b"},
		{"two deadlocks", `
			a waits for m at 4: b at 2
			b waits for l at 3: a at 1
			c waits for o at 8: d at 6
			d waits for n at 7: c at 5`, "a b; c d"},
		{"two cycles through one client", `
			a waits for l at 4: b at 1, c at 2
			b waits for m at 5: a at 3
			c waits for m at 6: a at 3`, "b a; c a"},
		{"one call that fails ends two cycles", `
			a waits for l at 6: b at 1, c at 2
			b waits for m at 4: a at 3
			c waits for m at 5: a at 3`, "a b"},
		{"a client whose other wait may end", `
			a waits for m at 4: b at 2
			b waits for l at 3: a at 1
			b waits for n at 5: c at 2`, ""},
		{"a client with two waits in deadlocks", `
			a waits for m at 4: b at 2
			b waits for l at 3: a at 1
			b waits for n at 6: c at 5
			c waits for l at 7: a at 1`, "c a b"},
		{"of a wait that nothing more is known of", `
			a waits for m at 4: b at 2
			b waits for l at 3:`, ""},
		{"nobody waits for himself", `
			a waits for m at 4: a at 2
			a waits for l at 3: a at 1`, ""},
		{"a lock that a former life has left", `
			a waits for l at 4: a at 1, b at 2
			b waits for l at 2: a at 1`, ""},
		{"a wait behind one that waits in the queue", `
			a waits for m at 4: b at 3
			b waits for m at 3: c at 2
			c waits for l at 5: a at 1`, "c a b"},
		{"a semaphore of which one holder may go", `
			a waits for s at 5 room 1: b at 1 1 permits, c at 2 1 permits
			b waits for l at 4: a at 3`, ""},
		{"a semaphore of which nobody may go", `
			a waits for s at 5 room 1: b at 1 1 permits, c at 2 1 permits
			b waits for l at 6: a at 3
			c waits for l at 7: a at 3`, "c a"},
		{"a semaphore that has room beside those that stay", `
			a waits for s at 5 room 2: b at 1 1 permits, c at 2 1 permits
			b waits for l at 6: a at 3
			c waits for l at 7: a at 3`, ""},
		{"a holder in another mode than the semaphore", `
			a waits for s at 5 room 2: b at 1, c at 2 1 permits
			b waits for l at 6: a at 3
			c waits for l at 7: a at 3`, "b a"},
		{"a semaphore that waits for another deadlock", `
			a waits for s at 90 room 1: b at 1 1 permits, c at 2 1 permits
			b waits for l at 91: a at 3
			c waits for m at 6: d at 4
			d waits for n at 7: c at 5`, "d c"},
	} {
		found := Find(parse(t, tc.waits))
		if got := names(found); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		for _, d := range found {
			// The proof is enough: with nothing else known, the same call fails.
			again := Find(d.Proof)
			if !slices.ContainsFunc(again, func(o Deadlock) bool { return o.Cycle[0].Place == d.Cycle[0].Place }) {
				t.Errorf("%s: the proof of %q shows %q", tc.name, names([]Deadlock{d}), names(again))
			}
		}
	}
}

// Find agrees with the definition, told in the dullest way: a wait is in a deadlock if it is in the
// largest set of waits of which none can end while the others don't. When those that Find names have
// ended there is no such set.
func TestFindModel(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	deadlocks := 0
	for range 5000 {
		waits := randomWaits(random)
		found := Find(waits)
		over := map[Place]bool{}
		for i, d := range found {
			deadlocks++
			left := slices.DeleteFunc(slices.Clone(waits), func(w Wait) bool { return over[w.Place] })
			stuck := modelStuck(left)
			for j, w := range d.Cycle {
				if !slices.ContainsFunc(stuck, func(o Wait) bool { return o.Place == w.Place }) {
					t.Fatalf("%+v is in no deadlock of %+v", w, left)
				}
				next := d.Cycle[(j+1)%len(d.Cycle)]
				if !slices.ContainsFunc(w.Before, func(b Before) bool { return b.Client == next.Client }) {
					t.Fatalf("%+v does not wait for %+v", w, next)
				}
				if w.Created > d.Cycle[0].Created {
					t.Fatalf("%+v is younger than %+v", w, d.Cycle[0])
				}
			}
			if len(modelStuck(d.Proof)) != len(d.Proof) {
				t.Fatalf("the proof of deadlock %d of %+v is none: %+v", i, waits, d.Proof)
			}
			over[d.Cycle[0].Place] = true
		}
		left := slices.DeleteFunc(slices.Clone(waits), func(w Wait) bool { return over[w.Place] })
		if stuck := modelStuck(left); len(stuck) > 0 {
			t.Fatalf("%+v are still in a deadlock of %+v", stuck, waits)
		}
	}
	if deadlocks < 1000 {
		t.Errorf("there were %d deadlocks", deadlocks)
	}
}

// modelStuck returns the waits that can't end.
func modelStuck(waits []Wait) (stuck []Wait) {
	ended := make([]bool, len(waits))
	stays := func(w Wait, b Before) bool {
		n := 0
		for i, own := range waits {
			switch {
			case own.Client != b.Client, own.Lock == w.Lock && own.Place != b.Place:
			case ended[i]:
				return false
			default:
				n++
			}
		}
		return n > 0 && b.Client != w.Client
	}
	for changed := true; changed; {
		changed = false
		for i, w := range waits {
			held, permits := false, 0
			for _, b := range w.Before {
				if stays(w, b) {
					held, permits = held || b.Permits == 0, permits+b.Permits
				}
			}
			if !ended[i] && !held && permits <= w.Room {
				ended[i], changed = true, true
			}
		}
	}
	for i, w := range waits {
		if !ended[i] {
			stuck = append(stuck, w)
		}
	}
	return stuck
}

// randomWaits are clients that hold locks and semaphores and wait for others, some for two at a time.
func randomWaits(random *rand.Rand) (waits []Wait) {
	const clients, locks = 6, 5
	rev := int64(0)
	type held struct {
		client  string
		rev     int64
		permits int
	}
	queues := make([][]held, locks)
	for l := range queues {
		for c := range clients {
			if random.IntN(4) == 0 {
				rev++
				queues[l] = append(queues[l], held{fmt.Sprint("c", c), rev, 1 + random.IntN(2)})
			}
		}
	}
	for _, c := range append(random.Perm(clients), random.IntN(clients)) {
		if random.IntN(8) == 0 {
			continue
		}
		rev++
		l, name := random.IntN(locks), fmt.Sprint("c", c)
		w := Wait{Client: name, Lock: fmt.Sprint("l", l), Calls: []string{name}}
		w.Place = Place{w.Lock + "/" + name, rev}
		semaphore := l < 2
		if semaphore {
			w.Room = random.IntN(3)
		}
		if slices.ContainsFunc(queues[l], func(h held) bool { return h.client == name }) {
			continue
		}
		for _, h := range queues[l] {
			b := Before{Place{w.Lock + "/" + h.client, h.rev}, h.client, 0}
			if semaphore {
				b.Permits = h.permits
			}
			w.Before = append(w.Before, b)
		}
		queues[l] = append(queues[l], held{name, rev, 1})
		waits = append(waits, w)
	}
	return waits
}

// Only what was there both times can be relied on.
func TestLasting(t *testing.T) {
	const first = `
		a waits for m at 4: b at 2
		b waits for l at 3: a at 1`
	for _, tc := range []struct{ name, later, want string }{
		{"all is there", first, "a b"},
		{"a place has come back with another revision", `
			a waits for m at 4: b at 2
			b waits for l at 3: a at 5`, ""},
		{"a wait has come back", `
			a waits for m at 4: b at 2
			b waits for l at 6: a at 1`, ""},
		{"a client has begun to wait for something else", first + `
			b waits for n at 7: c at 6`, ""},
		{"a wait has ended", `
			a waits for m at 4: b at 2`, ""},
	} {
		if got := names(Find(Lasting(parse(t, first), parse(t, tc.later)))); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	later := parse(t, first)
	later[1].Calls = []string{"another call"}
	if got := names(Find(Lasting(parse(t, first), later))); got != "" {
		t.Errorf("a place that another call waits with: %q", got)
	}
}
