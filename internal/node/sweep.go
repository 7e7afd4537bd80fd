package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// sweepPause lies between two attempts to make the shards take over a compaction.
const sweepPause = time.Second

// sweeping makes the data shards take over each compaction of the cluster, which is
// decided in the system shard.
type sweeping struct {
	// compacted returns the compaction revision and what is closed when it may have
	// changed.
	compacted func() (rev int64, changed <-chan struct{})
	sweep     func(ctx context.Context, rev int64) error
	log       *slog.Logger

	wg     sync.WaitGroup
	cancel context.CancelFunc
}

func (s *sweeping) start() {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() { s.run(ctx) })
}

func (s *sweeping) run(ctx context.Context) {
	for ctx.Err() == nil {
		rev, changed := s.compacted()
		var again <-chan time.Time
		if rev > 0 {
			if err := s.sweep(ctx, rev); err != nil && ctx.Err() == nil && !errors.Is(err, raft.ErrStopped) {
				s.log.Warn("a shard has not taken over a compaction yet; it is tried again",
					slog.Int64("revision", rev), slog.Any("error", err))
				again = time.After(sweepPause)
			}
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

func (s *sweeping) close() {
	s.cancel()
	s.wg.Wait()
}
