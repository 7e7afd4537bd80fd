// Package syncfs is a file system that passes everything on to a directory, and whose
// fsyncs can be made slow or made to fail. It is for tests: it runs in the program that
// breaks a cluster, which must be root and have /dev/fuse.
package syncfs

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FS is a mounted file system.
type FS struct {
	server *fuse.Server

	mu sync.Mutex
	// delay is how long an fsync takes longer, failing whether it ends in EIO; protected by
	// mu.
	delay   time.Duration
	failing bool
}

// Mount shows a directory at another one, which must be there and be empty.
func Mount(dir, at string) (*FS, error) {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("pass on %s: %w", dir, err)
	}
	loopback, ok := root.(*fs.LoopbackNode)
	if !ok {
		return nil, fmt.Errorf("pass on %s: its root is a %T", dir, root)
	}
	f := &FS{}
	f.server, err = fs.Mount(at, &node{LoopbackNode: loopback, fs: f}, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: dir, Name: "syncfs"},
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", at, err)
	}
	return f, nil
}

// Delay makes every fsync take longer by d.
func (f *FS) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Fail makes every fsync fail, or lets them be.
func (f *FS) Fail(failing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = failing
}

// Unmount ends the file system, which nobody may use any more.
func (f *FS) Unmount() error { return f.server.Unmount() }

// node is a file or directory.
type node struct {
	*fs.LoopbackNode

	fs *FS
}

var (
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.NodeFsyncer     = (*node)(nil)

	_ fs.NodeOpendirHandler = (*node)(nil)
)

// WrapChild has fsyncs of what is below come here too.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	loopback, ok := child.(*fs.LoopbackNode)
	if !ok {
		return child
	}
	return &node{LoopbackNode: loopback, fs: n.fs}
}

// OpendirHandle opens a directory.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, out, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if d, ok := f.(directory); ok {
		f = &dir{directory: d, fs: n.fs}
	}
	return f, out, errno
}

// Fsync syncs a file.
func (n *node) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	file, ok := f.(fs.FileFsyncer)
	if !ok {
		return syscall.EBADF
	}
	return n.fs.fsync(func() syscall.Errno { return file.Fsync(ctx, flags) })
}

// directory is an open directory.
type directory interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
	fs.FileFsyncdirer
}

// dir is an open directory whose fsyncs are slow or fail as those of files.
type dir struct {
	directory

	fs *FS
}

// Fsyncdir syncs a directory.
func (d *dir) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.fs.fsync(func() syscall.Errno { return d.directory.Fsyncdir(ctx, flags) })
}

// fsync syncs, unless it is to fail.
func (f *FS) fsync(sync func() syscall.Errno) syscall.Errno {
	f.mu.Lock()
	delay, failing := f.delay, f.failing
	f.mu.Unlock()
	time.Sleep(delay)
	if failing {
		return syscall.EIO
	}
	return sync()
}
