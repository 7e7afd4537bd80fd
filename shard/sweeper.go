package shard

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

const (
	// sweepStep bounds the changes that one step looks at.
	sweepStep = 1000
	// sweepPause lies between two steps, so that requests are served between
	// them, and before another look at versions that readers hold.
	sweepPause = 5 * time.Millisecond
)

// sweeper removes from the disk what compaction made superfluous, a step at a
// time. Its goroutine runs only while there is something to remove.
type sweeper struct {
	store    *mvcc.Store
	observer Observer
	log      *slog.Logger
	host     *raft.Host
	wg       sync.WaitGroup

	// busy is held during a step, and while the store's content is replaced.
	busy sync.Mutex

	mu sync.Mutex
	// The fields below are protected by mu.

	running, closed bool
	// again says that a compaction came while the sweep ran.
	again bool
	// failure is what stopped the last sweep, nil while one runs.
	failure error
	// done is closed, and replaced, when a sweep has ended.
	done chan struct{}
	stop chan struct{}
}

func newSweeper(store *mvcc.Store, h *raft.Host, o Observer, log *slog.Logger) *sweeper {
	return &sweeper{store: store, observer: o, log: log, host: h, done: make(chan struct{}), stop: make(chan struct{})}
}

// start sweeps up to the newest compaction.
func (s *sweeper) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again = true
	if s.running || s.closed {
		return
	}
	s.running = true
	s.wg.Add(1)
	go s.run()
}

func (s *sweeper) run() {
	defer s.wg.Done()
	for {
		s.mu.Lock()
		if s.closed || !s.again {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.again, s.failure = false, nil
		s.mu.Unlock()
		err := s.sweep()
		s.mu.Lock()
		s.failure = err
		close(s.done)
		s.done = make(chan struct{})
		s.mu.Unlock()
	}
}

// sweep takes steps until nothing is left, the sweeper is closed or the disk fails.
func (s *sweeper) sweep() error {
	defer s.host.EndOnPanic("free space of compacted versions")
	pause := time.NewTimer(0)
	defer pause.Stop()
	began, longest := time.Now(), time.Duration(0)
	for {
		select {
		case <-s.stop:
			return raft.ErrStopped
		case <-pause.C:
		}
		s.busy.Lock()
		step := time.Now()
		done, err := s.store.Sweep(sweepStep)
		longest = max(longest, time.Since(step))
		s.busy.Unlock()
		if err != nil {
			s.log.Error("space of compacted versions can't be freed; check the disk that holds the data directory",
				slog.Any("error", err))
			return fmt.Errorf("free space of compacted versions: %w", err)
		}
		if done {
			s.observer.Swept(time.Since(began), longest)
			return nil
		}
		pause.Reset(sweepPause)
	}
}

// hold keeps steps from running until release.
func (s *sweeper) hold()    { s.busy.Lock() }
func (s *sweeper) release() { s.busy.Unlock() }

// await returns when the store has been swept up to rev, or can't be.
func (s *sweeper) await(ctx context.Context, rev int64) error {
	for {
		s.mu.Lock()
		done, failure := s.done, s.failure
		s.mu.Unlock()
		switch {
		case s.store.SweepDone(rev):
			return nil
		case failure != nil:
			return failure
		}
		select {
		case <-done:
		case <-s.stop:
			return raft.ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// close stops the sweep.
func (s *sweeper) close() {
	s.mu.Lock()
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.wg.Wait()
}
