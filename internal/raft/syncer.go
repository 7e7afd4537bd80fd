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
	if s.running {
		if s.next == nil {
			s.next = &syncRound{done: make(chan struct{})}
		}
		r := s.next
		s.mu.Unlock()
		<-r.done
		return r.err
	}
	s.running = true
	s.mu.Unlock()
	err := s.db.Flush()
	for {
		s.mu.Lock()
		r := s.next
		s.next = nil
		if r == nil {
			s.running = false
			s.mu.Unlock()
			return err
		}
		s.mu.Unlock()
		r.err = s.db.Flush()
		close(r.done)
	}
}
