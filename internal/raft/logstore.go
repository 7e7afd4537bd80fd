package raft

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/raftlog"
)

// Below a host's directory are its log, and what dragonboat keeps: whose host it is, and
// snapshots from other nodes.
const (
	logDir        = "log"
	dragonboatDir = "dragonboat"
)

// logFactory opens the log of a host for dragonboat.
type logFactory struct {
	cfg HostConfig
	// store is what it opened.
	store *logStore
}

var _ config.LogDBFactory = (*logFactory)(nil)

// Create opens the log.
func (l *logFactory) Create(
	_ config.NodeHostConfig, _ config.LogDBCallback, dirs, _ []string,
) (raftio.ILogDB, error) {
	fs := raftFS(l.cfg)
	log, err := raftlog.Open(raftlog.Options{
		FS: fs, Dir: fs.PathJoin(l.cfg.Dir, logDir), Made: l.cfg.Made, Synced: l.cfg.Observer.LogSaved, NotReused: l.notReused,
	})
	if err != nil {
		return nil, err
	}
	l.store = &logStore{ILogDB: log, log: log, cfg: l.cfg, root: dirs[0], doing: fmt.Sprintf("write %s log in %s", l.cfg.Name, l.cfg.Dir)}
	return l.store, nil
}

// notReused tells operators of a disk that begins to fail.
func (l *logFactory) notReused(file string, err error) {
	l.cfg.Log.Warn("a log file can't be used again, a new one is made", slog.String("file", file), slog.String("error", err.Error()))
}

// Name returns the name of the log store.
func (*logFactory) Name() string { return raftlog.Name }

// logStore is a host's log. It tells how long writes are under way, ends the process when one
// fails, and hides the content of snapshots that a replica need not load.
type logStore struct {
	raftio.ILogDB
	log *raftlog.Log

	cfg HostConfig
	// doing is what failed when a write did.
	doing string
	// root is the directory of snapshots.
	root string

	mu sync.Mutex
	// held are the replicas, while they start, whose state has all that their newest
	// snapshot had; protected by mu.
	held map[raftio.NodeInfo]bool
}

// hold says of a replica that starts whether its state has all that its newest snapshot
// had.
func (s *logStore) hold(shardID, replicaID uint64, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[raftio.NodeInfo]bool)
	}
	s.held[raftio.GetNodeInfo(shardID, replicaID)] = held
}

// GetSnapshot returns a replica's newest snapshot. Where the state has all that was in
// it, it is one without content, whose file is not looked at.
func (s *logStore) GetSnapshot(shardID, replicaID uint64) (raftpb.Snapshot, error) {
	ss, err := s.ILogDB.GetSnapshot(shardID, replicaID)
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.Dummy = ss.Dummy || ss.Index > 0 && s.held[raftio.GetNodeInfo(shardID, replicaID)]
	return ss, err
}

// SaveRaftState writes a step of Raft and makes it durable. What it says to followers was queued before, and is sent
// first: their disks are to work beside this one, and a disk keeps the processor that would have sent it.
func (s *logStore) SaveRaftState(updates []raftpb.Update, worker uint64) error {
	if slices.ContainsFunc(updates, replicates) {
		runtime.Gosched()
	}
	return s.write(func() error { return s.ILogDB.SaveRaftState(updates, worker) })
}

// replicates reports whether a step says something to followers.
func replicates(u raftpb.Update) bool {
	return slices.ContainsFunc(u.Messages, func(m raftpb.Message) bool { return m.Type == raftpb.Replicate })
}

// SaveSnapshots writes where replicas' snapshots are.
func (s *logStore) SaveSnapshots(updates []raftpb.Update) error {
	return s.write(func() error { return s.ILogDB.SaveSnapshots(updates) })
}

// RemoveEntriesTo drops what a snapshot has made needless.
func (s *logStore) RemoveEntriesTo(shardID, replicaID, index uint64) error {
	return s.write(func() error { return s.ILogDB.RemoveEntriesTo(shardID, replicaID, index) })
}

// SaveBootstrapInfo writes who a shard's first members are.
func (s *logStore) SaveBootstrapInfo(shardID, replicaID uint64, b raftpb.Bootstrap) error {
	return s.write(func() error { return s.ILogDB.SaveBootstrapInfo(shardID, replicaID, b) })
}

// RemoveNodeData drops all that the log has of a replica.
func (s *logStore) RemoveNodeData(shardID, replicaID uint64) error {
	return s.write(func() error { return s.ILogDB.RemoveNodeData(shardID, replicaID) })
}

// ImportSnapshot writes a snapshot's record in the place of all that the log has of a replica.
func (s *logStore) ImportSnapshot(ss raftpb.Snapshot, replicaID uint64) error {
	return s.write(func() error { return s.ILogDB.ImportSnapshot(ss, replicaID) })
}

// write runs what writes the log. An error ends the process.
func (s *logStore) write(do func() error) error {
	defer endOnPanic(s.cfg.Fatal, s.doing)
	ended := s.cfg.LogWrites.begin()
	defer ended()
	if err := do(); err != nil {
		return diskFailed(s.doing, err)
	}
	return nil
}
