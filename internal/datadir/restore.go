package datadir

import (
	"errors"
	"fmt"
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

// Make makes the directory of a node that begins with a backup. The first start loads it, and
// begins with it anew if it is cut. id.Restore is set.
func Make(fsys vfs.FS, path string, id Identity, backup io.Reader) (err error) {
	there, err := fsys.List(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look into data directory: %w", err)
	}
	if len(there) > 0 {
		return fmt.Errorf("%w: %s", ErrNotEmpty, path)
	}
	d := &Dir{fs: fsys, path: path, id: id}
	d.id.Format = Format
	if err := makeDurably(fsys, fsys.PathJoin(path, restoreDir)); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	f, err := fsys.Create(d.Backup(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("copy backup: %w", err)
	}
	// The file may change what it is given to write: it gets a copy, not what a WriterTo holds.
	_, err = io.Copy(f, struct{ io.Reader }{backup})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = syncDir(fsys, fsys.PathJoin(path, restoreDir))
	}
	if err != nil {
		return fmt.Errorf("copy backup: %w", err)
	}
	// Last: without it no node starts where the backup lies.
	return d.write()
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
