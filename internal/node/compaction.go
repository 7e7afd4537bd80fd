package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

const (
	// compactionSamples is how many revisions are noted in an interval between two
	// compactions.
	compactionSamples = 10
	// longestCompactionInterval bounds the time between two compactions by period.
	longestCompactionInterval = time.Hour
	// shortestCompactionSample bounds how often the revision is noted.
	shortestCompactionSample = time.Millisecond
	// revisionCompactionInterval lies between two compactions by revisions.
	revisionCompactionInterval = 5 * time.Minute
)

// compacted is what automatic compaction compacts, the router.
type compacted interface {
	// Revision returns the newest revision that this node knows.
	Revision() int64
	// Retaining returns the revision at which a compaction keeps the last n revisions that
	// changed something, 0 where there are not more.
	Retaining(ctx context.Context, n int64) (int64, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)
}

// compactionConfig says what automatic compaction keeps. One of Period and Revisions is positive.
type compactionConfig struct {
	Store compacted
	// Leads reports whether this node is the one that compacts.
	Leads func() bool
	// Period keeps the history of the last so long, Revisions that of the last so
	// many revisions.
	Period    time.Duration
	Revisions int64
	Log       *slog.Logger
}

// compaction drops old history by itself, as --auto-compaction-mode asks: what is older
// than a period, or more than a number of revisions back.
type compaction struct {
	c    compactionConfig
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// startCompaction returns a running compaction.
func startCompaction(c compactionConfig) *compaction {
	ctx, stop := context.WithCancel(context.Background())
	k := &compaction{c: c, stop: stop}
	run := k.byPeriod
	if c.Revisions > 0 {
		run = k.byRevisions
	}
	k.wg.Go(func() { run(ctx) })
	return k
}

// close stops the compaction and waits for it.
func (k *compaction) close() {
	k.stop()
	k.wg.Wait()
}

// byPeriod notes the revision at every sample and, once those of a whole period
// are there, compacts at the oldest, once an interval.
func (k *compaction) byPeriod(ctx context.Context) {
	interval := min(k.c.Period, longestCompactionInterval)
	sample := max(interval/compactionSamples, shortestCompactionSample)
	keep := max(int(k.c.Period/sample), 1)
	var noted []int64
	var last int64
	next := time.Now().Add(k.c.Period)
	for tick(ctx, sample) {
		noted = append(noted, k.c.Store.Revision())
		if len(noted) > keep {
			noted = noted[len(noted)-keep:]
		}
		if time.Now().Before(next) {
			continue
		}
		if noted[0] == last || k.compact(ctx, noted[0]) {
			last = noted[0]
			next = time.Now().Add(interval)
		}
	}
}

func (k *compaction) byRevisions(ctx context.Context) {
	var last int64
	for tick(ctx, revisionCompactionInterval) {
		rev, err := k.c.Store.Retaining(ctx, k.c.Revisions)
		if err != nil {
			k.c.Log.Warn("automatic compaction can't tell how far to go; it is tried again", slog.Any("error", err))
		}
		if rev > 0 && rev != last && k.compact(ctx, rev) {
			last = rev
		}
	}
}

// tick waits for d; false says that the compaction is closed.
func tick(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// compact reports whether history up to rev is gone, or is another node's to
// drop.
func (k *compaction) compact(ctx context.Context, rev int64) bool {
	if !k.c.Leads() {
		return true
	}
	_, err := k.c.Store.Compact(ctx, &pb.CompactionRequest{Revision: rev})
	if err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		k.c.Log.Warn("automatic compaction failed; it is tried again",
			slog.Int64("revision", rev), slog.Any("error", err))
		return false
	}
	k.c.Log.Info("compacted history", slog.Int64("revision", rev))
	return true
}
