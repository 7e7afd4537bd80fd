package raft

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/lni/dragonboat/v4"
)

// A log is cut when enough entries have been applied since the last time: a snapshot is recorded, which for a state on disk
// is no more than its index, and older entries are dropped. Some are kept for those that follow and lag; what a follower
// lacks and is not in the log is streamed to it with the whole state. One that is given a state, or lags far
// behind, needs all that comes meanwhile: a leader cuts nothing while it hears of such a follower, or would
// have to stream the state again, for ever. Entries that are kept so are bounded by their bytes.

const (
	// snapshotEntries is how many entries lie between two cuts, and keptEntries how many applied ones stay.
	snapshotEntries = 20_000
	keptEntries     = 5_000
	// maxKeptBytes is how much is kept of the logs of a host for followers that lag, of which each has an equal share, and
	// minKeptBytes at least.
	maxKeptBytes = 2 << 30
	minKeptBytes = 64 << 20
	// cutTimeout bounds a cut, for which the state is fsynced.
	cutTimeout = time.Minute
	// cutPause lies between two looks at whether the log has been cut.
	cutPause = 10 * time.Millisecond
)

// keepLogShort cuts the log if that is due. It is called every now and then, and does not wait.
func (r *Replica) keepLogShort() {
	applied, kept := r.Applied(), cmp.Or(r.host.cfg.KeptEntries, keptEntries)
	if applied < r.cut.Load()+cmp.Or(r.host.cfg.SnapshotEntries, snapshotEntries) || applied <= kept {
		return
	}
	if r.lagging(applied-kept) && r.host.logs.log.Size(r.shardID, r.replicaID) < r.host.keptBytes() {
		return
	}
	if !r.cutting.CompareAndSwap(false, true) {
		return
	}
	err := r.goUntilClosed(func(ctx context.Context) {
		defer r.cutting.Store(false)
		ctx, cancel := context.WithTimeoutCause(ctx, cutTimeout, ErrTimeout)
		defer cancel()
		if r.cutTo(ctx, applied-kept) == nil {
			r.cut.Store(applied)
		}
	})
	if err != nil {
		r.cutting.Store(false)
	}
}

// keptBytes is how much of each log is kept for followers that lag.
func (h *Host) keptBytes() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cfg.KeptBytes > 0 {
		return h.cfg.KeptBytes / uint64(max(len(h.replicas), 1))
	}
	return max(minKeptBytes, maxKeptBytes/uint64(max(len(h.replicas), 1)))
}

// lagging reports whether this replica leads and hears of one that follows and has not acknowledged the entry at an
// index.
func (r *Replica) lagging(index uint64) bool {
	term := r.Serving()
	return term != 0 && r.host.inbox.followers.lagging(r.shardID, term, index)
}

// lengthen adds an entry that does nothing to the log, if this replica leads.
func (r *Replica) lengthen() {
	if term := r.Serving(); term != 0 {
		_, _ = r.nh.Propose(r.session, appendBegin(nil, term), r.host.attempt()) // the next attempt tells
	}
}

// cutTo drops the entries up to an index, which has been applied.
func (r *Replica) cutTo(ctx context.Context, index uint64) error {
	_, err := r.nh.SyncRequestSnapshot(ctx, r.shardID, dragonboat.SnapshotOption{OverrideCompactionOverhead: true, CompactionIndex: index})
	if err != nil {
		return fmt.Errorf("cut log of shard %d: %w", r.shardID, err)
	}
	return nil
}

// CutLog drops the first entry of this replica's log, unless that is gone already: a replica that
// joins and has nothing can then be given a snapshot alone, as it has to (inbox.needless).
func (r *Replica) CutLog(ctx context.Context) error {
	log, err := r.nh.GetLogReader(r.shardID)
	if err != nil {
		return fmt.Errorf("read log of shard %d: %w", r.shardID, err)
	}
	if first, _ := log.GetRange(); first > 1 {
		return nil
	}
	ctx, cancel := r.stepTime(ctx)
	defer cancel()
	if err := r.cutTo(ctx, 1); err != nil {
		// Dragonboat records no second snapshot of one index, so that a log of which nothing is asked could not be cut any more.
		r.lengthen()
		return err
	}
	for {
		if first, _ := log.GetRange(); first > 1 {
			return nil
		}
		t := time.NewTimer(cutPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}
