package raft

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// StateOptions are Pebble's options for the state of a node's replicas, on a file system. Pebble logs to log.
//
// The state has no write-ahead log: a batch of it is some applied entries and how far they go, and Raft's log, which is fsynced before
// they apply, keeps the entries until Sync has made the state durable (cut.go). A crash leaves the state of some
// earlier moment, whole, from which entries are applied again.
//
// Whoever writes anything else is done only when Sync, or Pebble's Flush, has returned.
func StateOptions(fs vfs.FS, log pebble.Logger) *pebble.Options {
	o := &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, DisableWAL: true, Logger: log}
	// A received state is taken in when its table is in the manifest. Pebble would have it wait with
	// what is to be flushed, which without a log a crash loses.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	return o
}
