package raft

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// stateDisk is a file system with a state, of which a crash leaves what was synced.
type stateDisk struct {
	t  *testing.T
	fs *vfs.MemFS
	db *pebble.DB
}

func (d *stateDisk) open(o *pebble.Options) {
	d.t.Helper()
	var err error
	if d.db, err = pebble.Open("state", o); err != nil {
		d.t.Fatal(err)
	}
}

// crash goes on with what a power cut would leave.
func (d *stateDisk) crash() {
	d.t.Helper()
	left := d.fs.CrashClone(vfs.CrashCloneCfg{})
	d.must(d.db.Close())
	d.fs = left
	d.open(StateOptions(d.fs, quietPebble{}))
}

func (d *stateDisk) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// holds checks the value of a key, nil for none.
func (d *stateDisk) holds(key string, want []byte) {
	d.t.Helper()
	got, closer, err := d.db.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		if want != nil {
			d.t.Errorf("%s is lost", key)
		}
		return
	}
	d.must(err)
	if !bytes.Equal(got, want) {
		d.t.Errorf("%s is %q, want %q", key, got, want)
	}
	d.must(closer.Close())
}

// A crash leaves what was flushed. What a state of an earlier version has in a log of its own is taken over, once.
func TestStateHasNoLog(t *testing.T) {
	d := &stateDisk{t: t, fs: vfs.NewCrashableMem()}
	d.open(&pebble.Options{FS: d.fs, FormatMajorVersion: pebble.FormatNewest, Logger: quietPebble{}})
	d.must(d.db.Set([]byte("a"), []byte("logged"), pebble.Sync))
	d.crash()
	d.holds("a", []byte("logged"))
	d.must(d.db.Set([]byte("a"), []byte("new"), pebble.NoSync))
	d.must(NewSyncer(d.db).Sync())
	d.must(d.db.Set([]byte("b"), []byte("unsynced"), pebble.NoSync))
	d.crash()
	d.holds("a", []byte("new"))
	d.holds("b", nil)
}

// A state that was received is there after a crash, whole, and nothing of what it replaced, which was not flushed.
func TestReceivedStateIsDurable(t *testing.T) {
	from := &stateDisk{t: t, fs: vfs.NewCrashableMem()}
	from.open(StateOptions(from.fs, quietPebble{}))
	prefix := Prefix(2, 1)
	key := func(s string) []byte { return append(bytes.Clone(prefix), s...) }
	from.must(from.db.Set(key("k1"), []byte("received"), pebble.NoSync))
	var sent bytes.Buffer
	snap := from.db.NewSnapshot()
	from.must(errors.Join(writeSnapshot(snap, prefix, &sent, nil), snap.Close(), from.db.Close()))

	d := &stateDisk{t: t, fs: vfs.NewCrashableMem()}
	d.open(StateOptions(d.fs, quietPebble{}))
	d.must(d.db.Set(key("k1"), []byte("mine"), pebble.NoSync))
	d.must(d.db.Set(key("k2"), []byte("mine"), pebble.NoSync))
	d.must(readSnapshot(d.db, d.fs, "tmp", prefix, &sent, nil))
	d.crash()
	d.holds(string(key("k1")), []byte("received"))
	d.holds(string(key("k2")), nil)
	d.must(d.db.Close())
}
