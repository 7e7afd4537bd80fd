package raft

import (
	"context"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	logvfs "github.com/cockroachdb/pebble/vfs"
)

// The storage engines use the files of their write-ahead logs again, under new names: a file
// that has its length already is synced faster. A file that can't be renamed is no reason to
// end a process as long as a new one can be made, but they end it.

// logFiles is the file system of the Raft logs' storage engine, which makes a new file where
// one can't be used again.
type logFiles struct{ logvfs.FS }

// ReuseForWrite uses a file again under another name, or makes a new one.
func (l logFiles) ReuseForWrite(oldname, newname string) (logvfs.File, error) {
	f, err := l.FS.ReuseForWrite(oldname, newname)
	if err == nil {
		return f, nil
	}
	notReused(oldname, err)
	_ = l.Remove(oldname) // the engine removes it when it is opened the next time
	return l.Create(newname)
}

// StateFiles is the same for a state's file system.
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

// useLogFiles gives logFiles to the engine of the Raft logs. Dragonboat lets nobody choose
// its file system without taking it for a test's, so that it is the engine's default, which
// nothing else in the process uses.
var useLogFiles = sync.OnceFunc(func() { logvfs.Default = logFiles{logvfs.Default} })
