package raft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// openLogStore opens dragonboat's own log store, which it keeps to itself.
//
// There is no other way to see how long the log takes. A file system that measures
// is no choice: dragonboat takes one other than its own only as an injector of
// faults, and then it goes on, without a word and without ever serving again, where
// a log that can't be written must stop the process. And it would see no fsync: the
// log store makes them by the file's descriptor.
//
//go:linkname openLogStore github.com/lni/dragonboat/v4/internal/logdb.NewDefaultLogDB
func openLogStore(
	c config.NodeHostConfig, callback config.LogDBCallback, dirs, walDirs []string,
) (raftio.ILogDB, error)

// logStoreName is the name that dragonboat has written into every log directory.
// A log under another name is refused.
const logStoreName = "sharded-pebble"

// errLogFormat is returned for a log whose entries have a format that is not read.
var errLogFormat = errors.New("the log's entries have another format")

// measuredLog makes dragonboat's own log store for a host, and measures what it writes.
type measuredLog struct {
	cfg HostConfig
	// store is what it made.
	store *measuredStore
}

var _ config.LogDBFactory = (*measuredLog)(nil)

// Create opens the log store.
func (m *measuredLog) Create(
	c config.NodeHostConfig, callback config.LogDBCallback, dirs, walDirs []string,
) (raftio.ILogDB, error) {
	store, err := openLogStore(c, callback, dirs, walDirs)
	if err != nil {
		return nil, err
	}
	// dragonboat looks for entries of its other format only in a store that it has
	// made itself.
	if s, ok := store.(interface{ SelfCheckFailed() (bool, error) }); ok {
		failed, err := s.SelfCheckFailed()
		if failed && err == nil {
			err = errLogFormat
		}
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	m.store = &measuredStore{
		ILogDB: store, cfg: m.cfg, root: dirs[0], doing: fmt.Sprintf("write %s log in %s", m.cfg.Name, m.cfg.Dir),
		writing: make([]sync.Mutex, max(m.cfg.LogShards, 1)),
	}
	return m.store, nil
}

// Name returns the name of the log store.
func (*measuredLog) Name() string { return logStoreName }

// measuredStore is a log store that tells how long its writes take, and of one that fails.
type measuredStore struct {
	raftio.ILogDB

	cfg HostConfig
	// doing is what failed when a write did.
	doing string
	// root is the directory of the log store and of the snapshots.
	root string
	// writing has a lock for each of the store's logs, held while a record is written there.
	// Invariant: at most one record of a log's file is not fsynced. So whole records behind
	// a broken one are behind one that had been fsynced, which is how walcheck tells
	// damage from what a power cut leaves of an unfinished fsync, in any order.
	writing []sync.Mutex

	mu sync.Mutex
	// held are the replicas, while they start, whose state has all that their newest
	// snapshot had; protected by mu.
	held map[member]bool
	// committed is the highest index that each replica's log knows to be committed; protected
	// by mu.
	committed map[member]uint64
}

// hold says of a replica that starts whether its state has all that its newest snapshot
// had.
func (m *measuredStore) hold(shardID, replicaID uint64, held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == nil {
		m.held = make(map[member]bool)
	}
	m.held[member{shardID, replicaID}] = held
}

// GetSnapshot returns a replica's newest snapshot. Where the state has all that was in
// it, it is one without content, whose file is not looked at.
func (m *measuredStore) GetSnapshot(shardID, replicaID uint64) (raftpb.Snapshot, error) {
	ss, err := m.ILogDB.GetSnapshot(shardID, replicaID)
	m.mu.Lock()
	defer m.mu.Unlock()
	ss.Dummy = ss.Dummy || ss.Index > 0 && m.held[member{shardID, replicaID}]
	return ss, err
}

// ReadRaftState returns what the log holds of a replica behind its newest snapshot.
func (m *measuredStore) ReadRaftState(shardID, replicaID, lastIndex uint64) (raftio.RaftState, error) {
	rs, err := m.ILogDB.ReadRaftState(shardID, replicaID, lastIndex)
	m.commit(shardID, replicaID, rs.State.Commit)
	return rs, err
}

// commit notes that a replica's log is committed up to an index.
func (m *measuredStore) commit(shardID, replicaID, index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.committed == nil {
		m.committed = make(map[member]uint64)
	}
	at := member{shardID, replicaID}
	m.committed[at] = max(m.committed[at], index)
}

// committedOf returns the index up to which a replica's log is known to be committed.
func (m *measuredStore) committedOf(shardID, replicaID uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.committed[member{shardID, replicaID}]
}

// alone waits until no record is written to the log of a shard, and returns what lets others
// write.
func (m *measuredStore) alone(shardID uint64) (done func()) {
	log := &m.writing[shardID%uint64(len(m.writing))] // dragonboat's own rule
	log.Lock()
	return log.Unlock
}

// SaveRaftState writes a step of Raft and makes it durable. All updates are of one log.
func (m *measuredStore) SaveRaftState(updates []raftpb.Update, worker uint64) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	if !slices.ContainsFunc(updates, writes) {
		return m.ILogDB.SaveRaftState(updates, worker)
	}
	bytes := 0
	for i := range updates {
		u := &updates[i]
		if !raftpb.IsEmptyState(u.State) {
			m.commit(u.ShardID, u.ReplicaID, u.Commit)
		}
		for j := range u.EntriesToSave {
			bytes += u.EntriesToSave[j].Size()
		}
	}
	ended := m.cfg.LogWrites.begin()
	defer ended()
	began := time.Now()
	done := m.alone(updates[0].ShardID)
	defer done()
	err := m.ILogDB.SaveRaftState(updates, worker)
	m.cfg.Observer.LogSaved(bytes, time.Since(began))
	return m.failed(err)
}

// SaveSnapshots writes where replicas' snapshots are. All updates are of one log.
func (m *measuredStore) SaveSnapshots(updates []raftpb.Update) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	if len(updates) > 0 {
		done := m.alone(updates[0].ShardID)
		defer done()
	}
	return m.failed(m.ILogDB.SaveSnapshots(updates))
}

// RemoveEntriesTo drops what a snapshot has made needless.
func (m *measuredStore) RemoveEntriesTo(shardID, replicaID, index uint64) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	done := m.alone(shardID)
	defer done()
	return m.failed(m.ILogDB.RemoveEntriesTo(shardID, replicaID, index))
}

// SaveBootstrapInfo writes who a shard's first members are.
func (m *measuredStore) SaveBootstrapInfo(shardID, replicaID uint64, b raftpb.Bootstrap) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	done := m.alone(shardID)
	defer done()
	return m.failed(m.ILogDB.SaveBootstrapInfo(shardID, replicaID, b))
}

// RemoveNodeData drops all that the log has of a replica.
func (m *measuredStore) RemoveNodeData(shardID, replicaID uint64) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	done := m.alone(shardID)
	defer done()
	return m.failed(m.ILogDB.RemoveNodeData(shardID, replicaID))
}

// ImportSnapshot writes a snapshot's record in the place of all that the log has of a replica.
func (m *measuredStore) ImportSnapshot(ss raftpb.Snapshot, replicaID uint64) error {
	defer endOnPanic(m.cfg.Fatal, m.doing)
	done := m.alone(ss.ShardID)
	defer done()
	return m.failed(m.ILogDB.ImportSnapshot(ss, replicaID))
}

// failed says what an error is about, before it ends the process.
func (m *measuredStore) failed(err error) error {
	if err == nil {
		return nil
	}
	return diskFailed(m.doing, err)
}

// writes reports whether an update has anything to be written.
func writes(u raftpb.Update) bool {
	return len(u.EntriesToSave) > 0 || !raftpb.IsEmptyState(u.State) || !raftpb.IsEmptySnapshot(u.Snapshot)
}
