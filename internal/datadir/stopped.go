package datadir

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// OpenStopped opens the directory of a node that does not run, and keeps it from running until Close. Nothing
// in it changes, but for the lock's file, which may have been lost.
func OpenStopped(fsys vfs.FS, path string) (*Dir, error) {
	d := &Dir{fs: fsys, path: path}
	found, err := d.read()
	switch {
	case err != nil:
		return nil, err
	case !found:
		if err := d.refuseParts(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: there is no %s in %s", ErrNothing, identityFile, path)
	}
	if d.lock, err = fsys.Lock(fsys.PathJoin(path, lockFile)); err != nil {
		return nil, lockError(path, err)
	}
	if err := d.checkStopped(); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	return d, nil
}

// checkStopped refuses a directory of which nothing can be taken.
func (d *Dir) checkStopped() error {
	// Not before: a node that runs may be writing it.
	if _, err := d.read(); err != nil {
		return err
	}
	if err := d.check(Config{}); err != nil {
		return err
	}
	switch {
	case d.id.Whole:
		return d.checkMarkers()
	case d.id.Restore != nil:
		return fmt.Errorf("%w: %s is to begin with a backup that it has not loaded yet: use that backup", ErrNothing, d.path)
	default:
		return fmt.Errorf("%w: the first start in %s was cut before the node was a member", ErrNothing, d.path)
	}
}
