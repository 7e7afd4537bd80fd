package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// room is by how many bytes the heap may grow between two collections.
	room = 64 << 20
	// Percents by which the heap may grow, of what lives: Go's own, and the most.
	leastPercent = 100
	mostPercent  = 400
)

// paceHeap sets how often the memory of the process is collected: each collection sets when
// the next one is due. It is called once in a process.
//
// Go collects when the heap has doubled since the last collection. A node has little that
// lives, and makes garbage with each call, so that under load it would collect many times
// a second, and spend more time on that than on its log. So a small heap may grow by
// room, whatever lives in it, and only a large one has to double.
func paceHeap() { pace(0) }

// cycle is garbage from the start, so that the next collection finds it. It is larger than
// what the runtime packs together with others.
type cycle [32]byte

// pace sets the percent for what lives now, where it is not the one set before, and is
// called again after the next collection.
func pace(before int) {
	p := percent(live())
	if p != before {
		debug.SetGCPercent(p)
	}
	runtime.AddCleanup(new(cycle), pace, p)
}

// live returns how many bytes the last collection left.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// percent returns by how much a heap may grow of which so many bytes live, in hundredths
// of them. Steps keep it from changing each time.
func percent(live uint64) int {
	const step = 25
	p := mostPercent
	if live > 0 {
		p = min(p, int(room*100/live))
	}
	return max(p-p%step, leastPercent)
}
