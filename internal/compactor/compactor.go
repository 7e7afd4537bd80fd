// Package compactor drops old history by itself, as --auto-compaction-mode asks:
// what is older than a period, or more than a number of revisions back.
package compactor

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
	// samples is how many revisions are noted in an interval between two
	// compactions.
	samples = 10
	// longestInterval bounds the time between two compactions by period.
	longestInterval = time.Hour
	// shortestSample bounds how often the revision is noted.
	shortestSample = time.Millisecond
	// revisionInterval lies between two compactions by revisions.
	revisionInterval = 5 * time.Minute
)

// Store is what is compacted.
type Store interface {
	// Revision returns the newest revision that this node knows.
	Revision() int64
	// Retaining returns the revision at which a compaction keeps the last n revisions that
	// changed something, 0 where there are not more.
	Retaining(ctx context.Context, n int64) (int64, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)
}

// Config says what is kept. One of Period and Revisions is positive.
type Config struct {
	Store Store
	// Leads reports whether this node is the one that compacts.
	Leads func() bool
	// Period keeps the history of the last so long, Revisions that of the last so
	// many revisions.
	Period    time.Duration
	Revisions int64
	Log       *slog.Logger
}

// Compactor compacts until it is closed.
type Compactor struct {
	c    Config
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Start returns a running compactor.
func Start(c Config) *Compactor {
	ctx, stop := context.WithCancel(context.Background())
	k := &Compactor{c: c, stop: stop}
	run := k.byPeriod
	if c.Revisions > 0 {
		run = k.byRevisions
	}
	k.wg.Go(func() { run(ctx) })
	return k
}

// Close stops the compactor and waits for it.
func (k *Compactor) Close() {
	k.stop()
	k.wg.Wait()
}

// byPeriod notes the revision at every sample and, once those of a whole period
// are there, compacts at the oldest, once an interval.
func (k *Compactor) byPeriod(ctx context.Context) {
	interval := min(k.c.Period, longestInterval)
	sample := max(interval/samples, shortestSample)
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

func (k *Compactor) byRevisions(ctx context.Context) {
	var last int64
	for tick(ctx, revisionInterval) {
		rev, err := k.c.Store.Retaining(ctx, k.c.Revisions)
		if err != nil {
			k.c.Log.Warn("automatic compaction can't tell how far to go; it is tried again", slog.Any("error", err))
		}
		if rev > 0 && rev != last && k.compact(ctx, rev) {
			last = rev
		}
	}
}

// tick waits for d; false says that the compactor is closed.
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
func (k *Compactor) compact(ctx context.Context, rev int64) bool {
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
