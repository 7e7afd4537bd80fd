package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		live uint64
		want int
	}{
		{0, 400}, {1, 400}, {10 << 20, 400}, {16 << 20, 400}, {20 << 20, 300}, {32 << 20, 200}, {40 << 20, 150}, {60 << 20, 100}, {64 << 20, 100}, {10 << 30, 100},
	} {
		if got := percent(tc.live); got != tc.want {
			t.Errorf("percent(%d) = %d, want %d", tc.live, got, tc.want)
		}
	}
}

// TestPace has the live heap grow and shrink, and looks at what is set: it changes the
// collector of the whole process, so nothing runs beside it.
func TestPace(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	paceHeap()
	settle := func(want int) {
		t.Helper()
		for range 1000 {
			runtime.GC() // each ends with pace, on a goroutine of the runtime's
			got := debug.SetGCPercent(want)
			if got == want {
				return
			}
			debug.SetGCPercent(got)
			runtime.Gosched()
		}
		t.Fatalf("the percent never became %d", want)
	}
	settle(mostPercent)
	large := make([]byte, 2*room)
	settle(leastPercent)
	runtime.KeepAlive(large)
	settle(mostPercent)
}
