package raft

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var errRename = errors.New("rename: input/output error")

// A log file of the state's that can't be used again costs nothing but a new one.
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
