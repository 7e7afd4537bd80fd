package raftlog

import (
	"encoding/binary"
	"slices"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

var _ raftio.ILogDB = (*Log)(nil)

// Name is what dragonboat writes down of a host's log. It refuses a log under another name.
const Name = "latchkey-segments"

// binaryFormat is dragonboat's number for the log's format, which it refuses to change.
const binaryFormat = 1

// Name returns the name of the log store.
func (*Log) Name() string { return Name }

// BinaryFormat returns the version of the log's format.
func (*Log) BinaryFormat() uint32 { return binaryFormat }

// at returns a replica, a new one if there is none. l.mu must be held.
func (l *Log) at(m member) *replica {
	r := l.replicas[m]
	if r == nil {
		r = &replica{first: 1}
		l.replicas[m] = r
	}
	return r
}

// change writes one frame and makes it durable.
func (l *Log) change(items func(b []byte) []byte) error {
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	start, _ := l.begin()
	l.pending = items(l.pending)
	number := l.end(start)
	l.mu.Unlock()
	if number == 0 {
		return nil
	}
	return l.flush(number, true)
}

// SaveRaftState writes a step of Raft. All updates count or none. It returns when they are
// durable, or, where only commit indexes moved, and past no change of a shard's members, at once.
func (l *Log) SaveRaftState(updates []raftpb.Update, _ uint64) error {
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	durable := false
	start, base := l.begin()
	for i := range updates {
		if l.add(&updates[i], base) {
			durable = true
		}
	}
	number := l.end(start)
	l.mu.Unlock()
	if number == 0 {
		return nil
	}
	return l.flush(number, durable)
}

// add adds an update to the frame, and reports whether it must be durable. That a change of the members is committed must be: Raft
// learns it again from the others, but one that was removed may be gone, and its vote be needed where that is not known. base is the offset in
// the segment of what l.pending begins with. l.mu must be held.
func (l *Log) add(u *raftpb.Update, base int64) (durable bool) {
	settles := slices.ContainsFunc(u.CommittedEntries, changesMembers)
	if len(u.EntriesToSave) == 0 && raftpb.IsEmptyState(u.State) && raftpb.IsEmptySnapshot(u.Snapshot) && !settles {
		return false
	}
	m := member{u.ShardID, u.ReplicaID}
	r := l.at(m)
	if s := u.State; !raftpb.IsEmptyState(s) && s != r.state {
		l.pending = appendMessage(l.pending, kindState, m, &s)
		durable = s.Term != r.state.Term || s.Vote != r.state.Vote
		r.state = s
	} else if settles && !raftpb.IsEmptyState(r.state) {
		// Its commit index may have been written, and not be durable.
		l.pending = appendMessage(l.pending, kindState, m, &r.state)
	}
	durable = durable || settles
	if u.Snapshot.Index > r.snapshot.Index {
		l.pending = appendMessage(l.pending, kindInstalled, m, &u.Snapshot)
		r.install(u.Snapshot)
		durable = true
	}
	if l.addEntries(r, m, u.EntriesToSave, base) {
		durable = true
	}
	return durable
}

func changesMembers(e raftpb.Entry) bool { return e.IsConfigChange() }

// addEntries adds entries, but for those that a snapshot holds. It reports whether there were
// any. l.mu must be held.
func (l *Log) addEntries(r *replica, m member, entries []raftpb.Entry, base int64) bool {
	for len(entries) > 0 && entries[0].Index <= r.snapshot.Index && entries[0].Index < r.first {
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return false
	}
	start := len(l.pending)
	l.pending = binary.LittleEndian.AppendUint64(beginItem(l.pending, kindEntries, m), entries[0].Index)
	for i := range entries {
		at := len(l.pending)
		l.pending = appendEntry(l.pending, &entries[i])
		r.put(entries[i].Index, position{segment: l.last(), at: base + int64(at), length: uint32(len(l.pending) - at)})
	}
	l.pending = endItem(l.pending, start)
	r.cutBehind(entries[len(entries)-1].Index + 1)
	return true
}

// SaveSnapshots writes what replicas' newest snapshots of their own state are.
func (l *Log) SaveSnapshots(updates []raftpb.Update) error {
	return l.change(func(b []byte) []byte {
		for i := range updates {
			m, ss := member{updates[i].ShardID, updates[i].ReplicaID}, updates[i].Snapshot
			if r := l.at(m); ss.Index > r.snapshot.Index {
				b = appendMessage(b, kindSnapshot, m, &ss)
				r.snapshot = clone(ss)
			}
		}
		return b
	})
}

// SaveBootstrapInfo writes who a shard's first members are.
func (l *Log) SaveBootstrapInfo(shardID, replicaID uint64, bootstrap raftpb.Bootstrap) error {
	m := member{shardID, replicaID}
	return l.change(func(b []byte) []byte {
		l.at(m).bootstrap = &bootstrap
		return appendMessage(b, kindBootstrap, m, &bootstrap)
	})
}

// RemoveNodeData drops all that the log has of a replica.
func (l *Log) RemoveNodeData(shardID, replicaID uint64) error {
	m := member{shardID, replicaID}
	return l.change(func(b []byte) []byte {
		l.at(m).cutBehind(0)
		delete(l.replicas, m)
		return appendNumbers(b, kindRemoved, m)
	})
}

// ImportSnapshot writes a snapshot in the place of all that the log has of a replica.
func (l *Log) ImportSnapshot(ss raftpb.Snapshot, replicaID uint64) error {
	m := member{ss.ShardID, replicaID}
	return l.change(func(b []byte) []byte {
		l.at(m).cutBehind(0)
		r := &replica{
			bootstrap: &raftpb.Bootstrap{Join: true, Type: ss.Type}, state: raftpb.State{Term: ss.Term, Commit: ss.Index},
		}
		r.install(ss)
		l.replicas[m] = r
		b = appendMessage(appendNumbers(b, kindRemoved, m), kindBootstrap, m, r.bootstrap)
		return appendMessage(appendMessage(b, kindState, m, &r.state), kindInstalled, m, &ss)
	})
}

// RemoveEntriesTo drops the entries of a replica up to an index. Their space is used again when
// a segment has none left that are needed.
func (l *Log) RemoveEntriesTo(shardID, replicaID, index uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replicas[member{shardID, replicaID}]; r != nil {
		r.cutBefore(index + 1)
	}
	return l.err
}

// CompactEntriesTo has nothing to do.
func (*Log) CompactEntriesTo(uint64, uint64, uint64) (<-chan struct{}, error) {
	done := make(chan struct{})
	close(done)
	return done, nil
}
