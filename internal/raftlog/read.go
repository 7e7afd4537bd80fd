package raftlog

import (
	"fmt"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// ListNodeInfo returns the replicas that were bootstrapped.
func (l *Log) ListNodeInfo() ([]raftio.NodeInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var nodes []raftio.NodeInfo
	for _, m := range l.members() {
		if l.replicas[m].bootstrap != nil {
			nodes = append(nodes, raftio.GetNodeInfo(m.shardID, m.replicaID))
		}
	}
	return nodes, nil
}

// GetBootstrapInfo returns who a shard's first members are, or raftio.ErrNoBootstrapInfo.
func (l *Log) GetBootstrapInfo(shardID, replicaID uint64) (raftpb.Bootstrap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replicas[member{shardID, replicaID}]; r != nil && r.bootstrap != nil {
		return *r.bootstrap, nil
	}
	return raftpb.Bootstrap{}, raftio.ErrNoBootstrapInfo
}

// GetSnapshot returns a replica's newest snapshot, whose Index is 0 if there is none.
func (l *Log) GetSnapshot(shardID, replicaID uint64) (raftpb.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replicas[member{shardID, replicaID}]; r != nil {
		return clone(r.snapshot), nil
	}
	return raftpb.Snapshot{}, nil
}

// Size returns the bytes of a replica's entries.
func (l *Log) Size(shardID, replicaID uint64) (bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[member{shardID, replicaID}]
	if r == nil {
		return 0
	}
	for _, p := range r.entries {
		bytes += uint64(p.length)
	}
	return bytes
}

// ReadRaftState returns a replica's state, and which entries there are behind snapshotIndex, or
// raftio.ErrNoSavedLog. The commit index may be lower than it was known to be.
func (l *Log) ReadRaftState(shardID, replicaID, snapshotIndex uint64) (raftio.RaftState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[member{shardID, replicaID}]
	if r == nil || raftpb.IsEmptyState(r.state) {
		return raftio.RaftState{}, raftio.ErrNoSavedLog
	}
	rs := raftio.RaftState{State: r.state, FirstIndex: snapshotIndex}
	rs.State.Commit = r.committed()
	if first := max(r.first, snapshotIndex+1); first < r.end() {
		rs.FirstIndex, rs.EntryCount = first, r.end()-first
	}
	return rs, nil
}

// Committed returns the highest index of which a replica's log knows that it is committed.
func (l *Log) Committed(shardID, replicaID uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replicas[member{shardID, replicaID}]; r != nil {
		return r.committed()
	}
	return 0
}

// Term returns the newest term that a replica's log knows. The replica has voted in no later one: what it
// says in a term goes out when the log has the term.
func (l *Log) Term(shardID, replicaID uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replicas[member{shardID, replicaID}]; r != nil {
		return r.state.Term
	}
	return 0
}

// IterateEntries appends a replica's entries from low to below high to entries, until they have
// more than maxSize bytes, and returns them with their size, to which size is added. It stops at
// the first that isn't there.
func (l *Log) IterateEntries(
	entries []raftpb.Entry, size, shardID, replicaID, low, high, maxSize uint64,
) ([]raftpb.Entry, uint64, error) {
	l.reading.RLock()
	defer l.reading.RUnlock()
	for index := low; index < high; {
		run := l.run(member{shardID, replicaID}, index, high, maxSize-min(maxSize, size))
		if len(run) == 0 {
			break
		}
		first, last := run[0], run[len(run)-1]
		b := make([]byte, last.at+int64(last.length)-first.at)
		if err := first.segment.read(b, first.at); err != nil {
			return nil, 0, err
		}
		for _, p := range run {
			e, err := readEntry(b[p.at-first.at:][:p.length])
			if err == nil && e.Index != index {
				err = fmt.Errorf("%w: entry %d is in the place of %d; %s", ErrDamaged, e.Index, index, remedy)
			}
			if err != nil {
				return nil, 0, fmt.Errorf("read %s at offset %d: %w", p.segment.path, p.at, err)
			}
			entries, size, index = append(entries, e), size+uint64(e.SizeUpperLimit()), index+1
			if size > maxSize {
				return entries, size, nil
			}
		}
	}
	return entries, size, nil
}

// run returns where entries are from an index on that lie one behind the other, until they have
// more than wanted bytes.
func (l *Log) run(m member, low, high, wanted uint64) []position {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[m]
	if r == nil {
		return nil
	}
	var run []position
	bytes := uint64(0)
	for index := low; index < high && bytes <= wanted; index++ {
		p, ok := r.find(index)
		if !ok {
			break
		}
		if n := len(run); n > 0 && (p.segment != run[n-1].segment || p.at != run[n-1].at+int64(run[n-1].length)) {
			break
		}
		run = append(run, p)
		bytes += uint64(p.length)
	}
	return run
}
