//go:build !linux

package raftlog

import "github.com/lni/vfs"

// syncData makes a file's content durable.
func syncData(f vfs.File) error { return f.Sync() }
