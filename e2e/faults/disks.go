package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults/syncfs"
)

// Disks gives each node a file system of its own, made and removed by the program that
// uses it, which must be root: ext4 in a file, on a loop device. It can be frozen and
// filled, and its fsyncs can be delayed and fail if that was asked for.
type Disks struct{ disks []*disk }

// disk is one node's file system.
type disk struct {
	// mount is where the file system is, data the directory that the node makes its own in.
	mount, data string
	// sync passes data on to mount, nil where nothing is done to fsyncs.
	sync            *syncfs.FS
	mounted, frozen bool
}

// diskSize is that of each file system, in bytes. Its file has holes.
const diskSize = 1 << 30

// NewDisks makes a file system for each of some nodes below a directory. With syncs their
// fsyncs can be broken, which makes all accesses dearer.
func NewDisks(nodes int, dir string, syncs bool) (d *Disks, err error) {
	d = &Disks{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	for i := range nodes {
		image := filepath.Join(dir, fmt.Sprintf("disk%d.img", i+1))
		k := &disk{mount: filepath.Join(dir, fmt.Sprintf("disk%d", i+1))}
		k.data = filepath.Join(k.mount, "data")
		d.disks = append(d.disks, k)
		if err := os.Mkdir(k.mount, 0o700); err != nil {
			return d, err
		}
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskSize)); err != nil {
			return d, err
		}
		if err := command("mkfs.ext4", "-q", "-m", "0", image); err != nil {
			return d, err
		}
		if err := command("mount", "-o", "loop,noatime", image, k.mount); err != nil {
			return d, err
		}
		k.mounted = true
		if err := os.Mkdir(k.data, 0o700); err != nil {
			return d, err
		}
		if !syncs {
			continue
		}
		at := filepath.Join(dir, fmt.Sprintf("sync%d", i+1))
		if err := os.Mkdir(at, 0o700); err != nil {
			return d, err
		}
		if k.sync, err = syncfs.Mount(k.data, at); err != nil {
			return d, err
		}
		k.data = at
	}
	return d, nil
}

// Freeze has every write of a node to its disk wait, and every fsync.
func (d *Disks) Freeze(node int) error {
	k := d.disks[node]
	if err := command("fsfreeze", "--freeze", k.mount); err != nil {
		return err
	}
	k.frozen = true
	return nil
}

// Thaw ends Freeze.
func (d *Disks) Thaw(node int) error {
	k := d.disks[node]
	if !k.frozen {
		return nil
	}
	k.frozen = false
	return command("fsfreeze", "--unfreeze", k.mount)
}

// Fill takes all space of a node's disk but some.
func (d *Disks) Fill(node, leave int) error {
	mount := d.disks[node].mount
	spare := filepath.Join(mount, "spare")
	if leave > 0 {
		if err := command("fallocate", "-l", fmt.Sprint(leave), spare); err != nil {
			return err
		}
	}
	for size := diskSize / 2; size >= 4<<10; size /= 2 {
		ballast := filepath.Join(mount, fmt.Sprintf("ballast-%d", size))
		if err := command("fallocate", "-l", fmt.Sprint(size), ballast); err != nil {
			// There is not so much left, and part of it may be taken.
			if err := os.Remove(ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	if leave > 0 {
		return os.Remove(spare)
	}
	return nil
}

// Free ends Fill.
func (d *Disks) Free(node int) error {
	ballast, err := filepath.Glob(filepath.Join(d.disks[node].mount, "ballast-*"))
	for _, b := range ballast {
		err = errors.Join(err, os.Remove(b))
	}
	return err
}

// DelaySyncs has every fsync of a node take longer, by nothing to end it.
func (d *Disks) DelaySyncs(node int, by time.Duration) { d.disks[node].sync.Delay(by) }

// FailSyncs has every fsync of a node fail, or ends that.
func (d *Disks) FailSyncs(node int, failing bool) { d.disks[node].sync.Fail(failing) }

// Close removes the file systems, after the processes that used them.
func (d *Disks) Close() error {
	var errs []error
	for i, k := range d.disks {
		errs = append(errs, d.Thaw(i))
		if k.sync != nil {
			errs = append(errs, patiently(k.sync.Unmount))
		}
		if k.mounted {
			errs = append(errs, patiently(func() error { return command("umount", k.mount) }))
		}
	}
	return errors.Join(errs...)
}

// patiently unmounts: files of a process that has ended may be open for a moment more.
func patiently(unmount func() error) (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = unmount(); err == nil {
			return nil
		}
	}
	return err
}
