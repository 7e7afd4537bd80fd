package raft

import (
	"context"
	"fmt"
	"time"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// What a replica has shown before its process ended, its state may lack after that: the
// state is not fsynced with each write. The log has it: nothing applies before it is in the
// log. What of the log was committed only a leader can tell, since the index up to which
// it was known is not in the log at once. So a replica has recovered, which means that it
// holds all that it ever showed, when it has applied all entries for it that its log had when
// it was opened, or a begin entry of a term above that of the last of them: terms rise along
// the log, so that such an entry lies behind all that was committed of the old ones.

// oldLog is where a replica's log ended when it was opened.
type oldLog struct {
	// index and term are those of the last entry for the state; 0 if there was none.
	index, term uint64
}

// recovered reports whether a state holds all that was committed of the log.
func (o oldLog) recovered(p progress) bool { return p.index >= o.index || p.term > o.term }

// readOldLog reads the last entry that is for the state, of a log that ends at end. Raft keeps others to itself: changes of the
// members, and what a leader begins its term with.
func readOldLog(logs raftio.ILogDB, shardID, replicaID uint64, end logEnd) (oldLog, error) {
	for index := end.last; index > end.snapshot.Index; index-- {
		entries, _, err := logs.IterateEntries([]raftpb.Entry(nil), 0, shardID, replicaID, index, index+1, 1)
		if err != nil {
			return oldLog{}, fmt.Errorf("read last entry: %w", err)
		}
		if len(entries) == 0 || entries[0].Index != index {
			return oldLog{index: index, term: end.term}, nil // no entry is of a later term than the log has seen
		}
		if e := entries[0]; e.IsUpdateEntry() {
			return oldLog{index: index, term: e.Term}, nil
		}
	}
	return oldLog{index: end.snapshot.OnDiskIndex, term: end.snapshot.Term}, nil
}

// leaderlessElections is how many election timeouts a replica that has no leader waits for
// one before it shows a state of which it can't know whether it showed a later one.
const leaderlessElections = 3

// Recovered reports whether the state holds all that this replica ever showed.
func (r *Replica) Recovered() bool {
	if r.recovered.Load() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recoveredLocked()
}

// recoveredLocked is Recovered. r.mu must be held.
func (r *Replica) recoveredLocked() bool {
	if r.old.recovered(r.applied) {
		r.recovered.Store(true)
	}
	return r.recovered.Load()
}

// AwaitRecovered waits until the state holds all that this replica ever showed, or there has
// been no leader for so long that there may be none for ever: then the state is what the
// log alone knew to be committed, which may lack what was under way when the process ended.
func (r *Replica) AwaitRecovered(ctx context.Context) error {
	for {
		r.mu.Lock()
		done, closed := r.recoveredLocked(), r.closed
		since := r.leaderless
		if !done && r.progressed == nil {
			r.progressed = make(chan struct{})
		}
		progressed, changed := r.progressed, r.changed
		r.mu.Unlock()
		switch {
		case done:
			return nil
		case closed:
			return ErrStopped
		}
		patience := r.host.election() * leaderlessElections
		if !since.IsZero() {
			patience -= time.Since(since)
			if patience <= 0 {
				return nil
			}
		}
		alone := time.NewTimer(patience)
		select {
		case <-progressed:
		case <-changed:
		case <-alone.C:
		case <-ctx.Done():
			alone.Stop()
			return context.Cause(ctx)
		}
		alone.Stop()
	}
}
