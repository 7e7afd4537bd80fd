package raft

import (
	"errors"
	"fmt"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// ErrDisagree is returned when a replica's log and its state don't belong together: one
// of them is an older copy, or lost. What is missing may have been acknowledged, or
// promised to a majority, so that the replica must not run.
var ErrDisagree = errors.New("log and state disagree")

// remedy says what to do about ErrDisagree.
const remedy = "put the directory that the node was stopped with back, or replace it: remove the member, add it again, and start it with an empty directory (etcdctl member remove, member add; see docs/operations.md)"

// logEnd is what a replica's log says before it is opened.
type logEnd struct {
	// last is the index of the last entry or of the snapshot, 0 for an empty log.
	last uint64
	// term is the newest Raft term.
	term uint64
	// snapshot is the newest one, whose Index is 0 if there is none.
	snapshot raftpb.Snapshot
}

// readLogEnd reads where a replica's log ends.
func readLogEnd(logs raftio.ILogDB, shardID, replicaID uint64) (logEnd, error) {
	ss, err := logs.GetSnapshot(shardID, replicaID)
	if err != nil {
		return logEnd{}, fmt.Errorf("read snapshot record: %w", err)
	}
	end := logEnd{last: ss.Index, term: ss.Term, snapshot: ss}
	rs, err := logs.ReadRaftState(shardID, replicaID, ss.Index)
	if errors.Is(err, raftio.ErrNoSavedLog) {
		return end, nil
	}
	if err != nil {
		return logEnd{}, fmt.Errorf("read Raft state: %w", err)
	}
	if rs.EntryCount > 0 {
		end.last = max(end.last, rs.FirstIndex+rs.EntryCount-1)
	}
	end.term = max(end.term, rs.State.Term)
	return end, nil
}

// agree refuses a replica whose log and state don't belong together. It returns whether
// the state has all that the log's newest snapshot had.
func agree(end logEnd, p progress) (held bool, err error) {
	switch {
	case p.index > end.last:
		return false, fmt.Errorf("%w: the state holds entry %d, and the log ends at %d: the log is an older copy, or lost; %s",
			ErrDisagree, p.index, end.last, remedy)
	case p.term > end.term:
		return false, fmt.Errorf("%w: the state has seen term %d, and the log only %d: the log is an older copy; %s",
			ErrDisagree, p.term, end.term, remedy)
	case p.index >= end.snapshot.OnDiskIndex:
		return true, nil
	case end.snapshot.Dummy:
		return false, fmt.Errorf("%w: the state ends at entry %d, and the log begins behind %d: the state is an older copy, or lost; %s",
			ErrDisagree, p.index, end.snapshot.OnDiskIndex, remedy)
	}
	return false, nil
}

// checkReplica refuses a replica whose log and state don't belong together, before
// dragonboat opens it: that would panic, or take what is left for all there was. It
// returns whether the log's newest snapshot may be taken for one without content.
func (h *Host) checkReplica(r *Replica) (held bool, err error) {
	p, err := readProgress(h.cfg.DB, r.prefix)
	if err != nil {
		return false, err
	}
	end, err := readLogEnd(h.logs, r.shardID, r.replicaID)
	if err != nil {
		return false, err
	}
	r.cut.Store(end.snapshot.Index)
	old, err := readOldLog(h.logs, r.shardID, r.replicaID, end)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	r.old = old
	r.mu.Unlock()
	held, err = agree(end, p)
	if held || err != nil {
		return held, err
	}
	return false, checkReceived(raftFS(h.cfg), h.logs.root, end.snapshot)
}
