package raftlog

import (
	"syscall"

	"github.com/lni/vfs"
)

// syncData makes a file's content durable, and of what the file system knows of the file as much
// as is needed to read it.
func syncData(f vfs.File) error {
	file, ok := f.(interface{ Fd() uintptr })
	if !ok {
		return f.Sync()
	}
	for {
		if err := syscall.Fdatasync(int(file.Fd())); err != syscall.EINTR {
			return err
		}
	}
}
