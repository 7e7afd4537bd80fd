package raft

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Syncer makes everything that was committed to the node's Pebble durable, with
// one flush for all that wait for it.
type Syncer struct {
	db *pebble.DB

	mu sync.Mutex
	// next is the round that has not started yet and that new callers join.
	next *syncRound
	// running is true while a round is under way.
	running bool
}

type syncRound struct {
	done chan struct{}
	err  error
}

// NewSyncer returns the syncer of db. All replicas in db share it.
func NewSyncer(db *pebble.DB) *Syncer { return &Syncer{db: db} }

// Sync returns once all that was committed before the call is durable. While the disk fails it does not return:
// Pebble tries again, and whoever opened it hears of that.
func (s *Syncer) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &syncRound{done: make(chan struct{})}
	}
	joined := s.next
	if s.running {
		s.mu.Unlock()
		<-joined.done
		s.mu.Lock()
		return joined.err
	}
	s.running = true
	for s.next != nil {
		r := s.next
		s.next = nil
		s.mu.Unlock()
		r.err = s.db.Flush()
		close(r.done)
		s.mu.Lock()
	}
	s.running = false
	return joined.err
}
