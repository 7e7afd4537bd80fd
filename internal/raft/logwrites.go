package raft

import (
	"sync"
	"time"
)

// LogWrites knows which writes of a node's Raft logs are under way, of all its hosts. A
// disk that hangs stops the replicas whose log has something to write, and no other: those
// would go on to lead without being able to serve, since a data shard takes its numbers
// from the system shard, and both are on the same disk.
type LogWrites struct {
	mu sync.Mutex
	// began is when each write under way began, by a number; protected by mu.
	began map[uint64]time.Time
	next  uint64
}

// begin notes that a write begins, and returns what ends it. A nil LogWrites notes nothing.
func (w *LogWrites) begin() (end func()) {
	if w == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began == nil {
		w.began = make(map[uint64]time.Time)
	}
	w.next++
	id := w.next
	w.began[id] = time.Now()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.began, id)
	}
}

// Stuck reports whether a write has been under way for longer than d.
func (w *LogWrites) Stuck(d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, began := range w.began {
		if time.Since(began) > d {
			return true
		}
	}
	return false
}
