package raft

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// slowStore is a log store whose writes take a while, and which counts those of each log that
// overlap.
type slowStore struct {
	raftio.ILogDB

	under      [2]atomic.Int32
	overlapped atomic.Int32
	// wait is what a write does meanwhile.
	wait func(shardID uint64)
}

func (s *slowStore) write(shardID uint64) error {
	log := &s.under[shardID%uint64(len(s.under))]
	if log.Add(1) > 1 {
		s.overlapped.Add(1)
	}
	s.wait(shardID)
	log.Add(-1)
	return nil
}

func (s *slowStore) SaveRaftState(u []raftpb.Update, _ uint64) error { return s.write(u[0].ShardID) }

func (s *slowStore) SaveSnapshots(u []raftpb.Update) error { return s.write(u[0].ShardID) }
func (s *slowStore) RemoveEntriesTo(id, _, _ uint64) error { return s.write(id) }
func (s *slowStore) RemoveNodeData(id, _ uint64) error     { return s.write(id) }
func (s *slowStore) ImportSnapshot(ss raftpb.Snapshot, _ uint64) error {
	return s.write(ss.ShardID)
}

func (s *slowStore) SaveBootstrapInfo(id, _ uint64, _ raftpb.Bootstrap) error { return s.write(id) }

func measured(inner *slowStore) *measuredStore {
	return &measuredStore{ILogDB: inner, cfg: HostConfig{Observer: unobserved{}}, writing: make([]sync.Mutex, len(inner.under))}
}

// No record of a log is written before the last one is fsynced.
func TestOneRecordAtATime(t *testing.T) {
	inner := &slowStore{wait: func(uint64) {
		for range 10 {
			runtime.Gosched()
		}
	}}
	m := measured(inner)
	var writers sync.WaitGroup
	for id := range uint64(8) {
		update := []raftpb.Update{{ShardID: id, EntriesToSave: []raftpb.Entry{{Index: 1}}}}
		for _, write := range []func() error{
			func() error { return m.SaveRaftState(update, 1) },
			func() error { return m.SaveSnapshots(update) },
			func() error { return m.RemoveEntriesTo(id, 1, 1) },
			func() error { return m.RemoveNodeData(id, 1) },
			func() error { return m.ImportSnapshot(raftpb.Snapshot{ShardID: id}, 1) },
			func() error { return m.SaveBootstrapInfo(id, 1, raftpb.Bootstrap{}) },
		} {
			writers.Go(func() {
				for range 100 {
					if err := write(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	writers.Wait()
	if n := inner.overlapped.Load(); n != 0 {
		t.Errorf("%d writes of a log began before another had ended", n)
	}
}

// A log does not wait for another.
func TestLogsAreWrittenSideBySide(t *testing.T) {
	both := make(chan struct{})
	m := measured(&slowStore{wait: func(id uint64) {
		if id == 0 {
			<-both
		} else {
			close(both)
		}
	}})
	var writers sync.WaitGroup
	for id := range uint64(2) {
		writers.Go(func() {
			if err := m.RemoveEntriesTo(id, 1, 1); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
}

// A log that dragonboat made by itself is one that a host opens.
func TestLogStoreIsDragonboatsOwn(t *testing.T) {
	c := newCluster(t, 1)
	defer c.close()
	nd, _ := c.leader(0)
	config := nd.host.nodeHostConfig(&measuredLog{cfg: HostConfig{Observer: unobserved{}}})
	c.stop(nd)
	own := config
	own.NodeHostDir, own.Expert.LogDBFactory = "/other", nil
	nh, err := dragonboat.NewNodeHost(own)
	if err != nil {
		t.Fatal(err)
	}
	nh.Close()
	config.NodeHostDir = "/other"
	if nh, err = dragonboat.NewNodeHost(config); err != nil || nh == nil {
		t.Fatalf("a log of dragonboat's is refused: %v", err)
	}
	nh.Close()
	c.start(nd)
}
