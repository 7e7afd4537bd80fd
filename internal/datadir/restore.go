package datadir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	restoreDir = "restore"
	backupFile = "backup"
)

var (
	// ErrNotEmpty is returned when a directory that is to be made has something in it.
	ErrNotEmpty = errors.New("data directory is not empty")
	// ErrRestored is returned for a first start as another node than the directory was
	// restored for.
	ErrRestored = errors.New("data directory was restored for another node: start it with the --name, --initial-cluster, " +
		"--initial-cluster-token and --initial-advertise-peer-urls that it was restored with")
)

// Restore says what a node makes of the backup that it begins with.
type Restore struct {
	// Bump, MarkCompacted and Splits are restore.Options's.
	Bump          int64    `json:"bump,omitempty"`
	MarkCompacted bool     `json:"mark_compacted,omitempty"`
	Splits        [][]byte `json:"splits,omitempty"`
}

// Make makes the directory of a node that begins with a backup, which save writes. The first
// start loads it, and begins with it anew if it is cut. identity returns the node's, whose Restore is set, by the
// SHA-256 of the backup. After an error nothing new is there.
func Make(fsys vfs.FS, path string, save func(io.Writer) error, identity func(sum []byte) Identity) (err error) {
	there, err := fsys.List(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look into data directory: %w", err)
	}
	if len(there) > 0 {
		return fmt.Errorf("%w: %s", ErrNotEmpty, path)
	}
	made := []string{path}
	if err == nil {
		made = []string{fsys.PathJoin(path, identityFile), fsys.PathJoin(path, identityFile+newSuffix), fsys.PathJoin(path, restoreDir)}
	}
	d := &Dir{fs: fsys, path: path}
	sum, err := d.makeBackup(save)
	if err == nil {
		d.id = identity(sum)
		// Last: without it no node starts where the backup lies.
		err = d.write()
	}
	if err == nil {
		return nil
	}
	for _, path := range made {
		if gone := fsys.RemoveAll(path); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// makeBackup makes the file of the backup and returns its SHA-256.
func (d *Dir) makeBackup(save func(io.Writer) error) (sum []byte, err error) {
	dir := d.fs.PathJoin(d.path, restoreDir)
	if err := makeDurably(d.fs, dir); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f, err := d.fs.Create(d.Backup(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	to := &hashed{to: f, sum: sha256.New()}
	if err = save(to); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = syncDir(d.fs, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	return to.sum.Sum(nil), nil
}

// hashed writes what it hashes.
type hashed struct {
	to  io.Writer
	sum hash.Hash
	buf []byte
}

// Write writes a copy: files may change what they are given to write.
func (h *hashed) Write(p []byte) (int, error) {
	_, _ = h.sum.Write(p) // never fails
	h.buf = append(h.buf[:0], p...)
	return h.to.Write(h.buf)
}

// Backup returns the file that the first start loads.
func (d *Dir) Backup() string { return d.fs.PathJoin(d.path, restoreDir, backupFile) }

// removeBackup removes the backup that has been loaded.
func (d *Dir) removeBackup() error {
	if d.id.Restore == nil {
		return nil
	}
	if err := d.fs.RemoveAll(d.fs.PathJoin(d.path, restoreDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove loaded backup: %w", err)
	}
	return nil
}
