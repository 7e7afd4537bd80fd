package shard

import (
	"errors"
	"slices"
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

// measuredLog makes dragonboat's own log store, and measures what it writes.
type measuredLog struct{ observer Observer }

var _ config.LogDBFactory = measuredLog{}

// Create opens the log store.
func (m measuredLog) Create(
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
	return &measuredStore{ILogDB: store, observer: m.observer}, nil
}

// Name returns the name of the log store.
func (measuredLog) Name() string { return logStoreName }

// measuredStore is a log store that tells how long its writes take.
type measuredStore struct {
	raftio.ILogDB

	observer Observer
}

// SaveRaftState writes a step of Raft and makes it durable.
func (m *measuredStore) SaveRaftState(updates []raftpb.Update, worker uint64) error {
	if !slices.ContainsFunc(updates, writes) {
		return m.ILogDB.SaveRaftState(updates, worker)
	}
	began := time.Now()
	err := m.ILogDB.SaveRaftState(updates, worker)
	m.observer.LogSaved(time.Since(began))
	return err
}

// writes reports whether an update has anything to be written.
func writes(u raftpb.Update) bool {
	return len(u.EntriesToSave) > 0 || !raftpb.IsEmptyState(u.State) || !raftpb.IsEmptySnapshot(u.Snapshot)
}
