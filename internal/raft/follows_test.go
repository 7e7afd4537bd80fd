package raft

import (
	"slices"
	"testing"
)

// A command that follows a number goes behind the commands of lower ones that are ready, also
// where these don't fit into its batch, and before those of higher ones; no lower one is used
// from then on.
func TestPlaceBehindANumber(t *testing.T) {
	plain := func(follows int64) *call { return &call{Proposal: Proposal{Follows: follows}} }
	numbered := func(size int, numbers ...int64) *group {
		g := &group{first: numbers[0]}
		for _, n := range numbers {
			g.calls = append(g.calls, &call{number: n, Proposal: Proposal{Payload: make([]byte, size)}})
		}
		return g
	}
	r := &Replica{
		queue: []*call{plain(20), plain(7), plain(0), plain(4), plain(10)},
		ready: []*group{numbered(1, 5, 6), numbered(1, 9), numbered(maxBatchBytes, 15), numbered(1, 25)},
	}
	r.used = 25
	type placed struct{ number, follows int64 }
	for i, want := range [][]placed{
		{{0, 0}, {0, 4}, {5, 0}, {6, 0}, {0, 7}, {9, 0}, {0, 10}},
		{{15, 0}, {0, 20}},
		{{25, 0}},
	} {
		var got []placed
		for _, c := range r.takeLocked(1).calls {
			got = append(got, placed{c.number, c.Follows})
		}
		if !slices.Equal(got, want) {
			t.Errorf("batch %d is %v, want %v", i+1, got, want)
		}
	}
	r.queue = []*call{plain(30)}
	if r.takeLocked(1); r.used != 30 || len(r.queue)+len(r.ready) > 0 {
		t.Errorf("numbers above %d may be used, %d calls and %d groups are left", r.used, len(r.queue), len(r.ready))
	}
}
