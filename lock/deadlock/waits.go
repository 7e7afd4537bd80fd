package deadlock

import "slices"

// Place is a place in the queue of a lock: a key and its create revision. One that has gone
// never comes back, and what is before it was there before it.
type Place struct {
	Key     string
	Created int64
}

// Before is a place that stands before one that waits, and is in its way.
type Before struct {
	Place
	// Client is whose place it is. It is never empty: nobody knows what a client without a name
	// waits for.
	Client string
	// Permits are those that the place takes of the semaphore that is waited for; 0 for a place that
	// must go.
	Permits int
}

// Wait is a place that calls of a client wait with, as one node knows it.
type Wait struct {
	Place
	Client, Lock string
	// Room is how many permits of the semaphore may be taken before it; 0 if it is none.
	Room int
	// Before are places in its way. It may end if nothing of them stays.
	Before []Before
	// Calls name the calls. No name is ever used twice.
	Calls []string
}

// Lasting returns what can be relied on of waits that were told later together with earlier ones:
// a wait with a call that was there both times has lasted from the first time to the second, and so has
// a place that was in its way both times. All other waits may end.
func Lasting(earlier, later []Wait) []Wait {
	known := make(map[Place][]Wait, len(earlier))
	for _, w := range earlier {
		known[w.Place] = append(known[w.Place], w)
	}
	lasting := make([]Wait, 0, len(later))
	for _, w := range later {
		var before []Before
		for _, was := range known[w.Place] {
			if slices.ContainsFunc(w.Calls, func(call string) bool { return slices.Contains(was.Calls, call) }) {
				before = slices.DeleteFunc(slices.Clone(w.Before), func(b Before) bool { return !slices.Contains(was.Before, b) })
			}
		}
		w.Before = before
		lasting = append(lasting, w)
	}
	return lasting
}
