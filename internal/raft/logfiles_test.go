package raft

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	logvfs "github.com/cockroachdb/pebble/vfs"
)

var errRename = errors.New("rename: input/output error")

// unrenamable is a file system whose log files can't be renamed.
type unrenamable struct {
	logvfs.FS
	tried *atomic.Int32
}

func (u unrenamable) ReuseForWrite(string, string) (logvfs.File, error) {
	u.tried.Add(1)
	return nil, errRename
}

// A log file of Raft's that can't be used again costs nothing but a new one.
func TestUnrenamableRaftLog(t *testing.T) {
	var tried atomic.Int32
	useLogFiles()
	files, ok := logvfs.Default.(logFiles)
	if !ok {
		t.Fatal("the engine of the logs has another file system")
	}
	logvfs.Default = logFiles{unrenamable{files.FS, &tried}}
	defer func() { logvfs.Default = files }()
	db, err := pebble.Open("state", &pebble.Options{FS: vfs.NewMem(), FormatMajorVersion: pebble.FormatNewest, Logger: quietPebble{}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func() (*Host, *Replica) {
		host, err := OpenHost(HostConfig{
			Dir: dir, Name: "test", NodeHostID: nodeHostID(1), Address: t.Name(),
			Resolve:      func(string) (string, bool) { return t.Name(), true },
			DeploymentID: 7, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 2, ElectionTicks: 20,
			DB: db, Syncer: NewSyncer(db), StateFS: vfs.NewMem(), TempDir: "tmp", Transport: &network{},
			Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Errorf("the node ends: %v", err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := host.Start(ReplicaConfig{
			ShardID: testShard, ReplicaID: 1, Members: map[uint64]string{1: nodeHostID(1)}, Machine: newRegister(t, db, Prefix(testShard, 1)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.AwaitServing(t.Context()); err != nil {
			t.Fatal(err)
		}
		return host, r
	}
	host, r := open()
	cell := make([]byte, 256<<10)
	for n := 0; tried.Load() < 2; n++ {
		if n == 1000 {
			t.Fatal("no log file is used again")
		}
		if _, err := r.Propose(t.Context(), kindAdd, cell); err != nil {
			t.Fatal(err)
		}
	}
	last := r.Applied()
	host.Close()
	host, r = open()
	if got := r.Applied(); got < last {
		t.Errorf("the log ends at %d, not %d", got, last)
	}
	host.Close()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// Nor does one of the state's.
func TestUnrenamableStateLog(t *testing.T) {
	tried := 0
	fs := vfs.NewMem()
	failing := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpReuseForWrite {
			return nil
		}
		tried++
		return errRename
	}))
	db, err := pebble.Open("state", &pebble.Options{
		FS: StateFiles(failing), FormatMajorVersion: pebble.FormatNewest, MemTableSize: 256 << 10, Logger: quietPebble{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := db.Set([]byte("k"), make([]byte, 32<<10), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Set([]byte("last"), nil, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	if tried == 0 {
		t.Error("no log file is used again")
	}
	db, err = pebble.Open("state", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quietPebble{}})
	if err != nil {
		t.Fatal(err)
	}
	_, closer, err := db.Get([]byte("last"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(closer.Close(), db.Close()); err != nil {
		t.Error(err)
	}
}
