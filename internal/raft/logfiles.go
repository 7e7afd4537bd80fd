package raft

import (
	"context"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The storage engine uses the files of its write-ahead log again, under new names: a file
// that has its length already is synced faster. A file that can't be renamed is no reason to
// end a process as long as a new one can be made, but it ends it.

// StateFiles returns a state's file system, which makes a new file where one can't be used again.
func StateFiles(fs vfs.FS) vfs.FS { return stateFiles{fs} }

type stateFiles struct{ vfs.FS }

// Unwrap returns the file system below.
func (s stateFiles) Unwrap() vfs.FS { return s.FS }

// ReuseForWrite uses a file again under another name, or makes a new one.
func (s stateFiles) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.ReuseForWrite(oldname, newname, category)
	if err == nil {
		return f, nil
	}
	notReused(oldname, err)
	_ = s.Remove(oldname) // the engine removes it when it is opened the next time
	return s.Create(newname, category)
}

// notReused tells operators of a disk that begins to fail.
func notReused(name string, err error) {
	if log := raftLog.Load(); log != nil {
		log.LogAttrs(context.Background(), slog.LevelWarn, "a log file can't be used again, a new one is made",
			slog.String("file", name), slog.String("error", err.Error()))
	}
}
