package recovery

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// Directory is the data directory of a node that does not run.
type Directory struct {
	Path string
	// Work is a directory for a copy of the state, which is made. Whoever made what is above removes it.
	Work string
	// FS is the file system of both, and RaftFS that of the logs; nil is the operating system's.
	FS     vfs.FS
	RaftFS raftvfs.FS
}

// The hosts of a node.
const (
	systemHost = "system"
	dataHost   = "data"
)

// opened is a directory in use.
type opened struct {
	Directory

	dir   *datadir.Dir
	state *pebble.DB
	logs  map[string]*raft.StoppedLog
	// replicas are those of the node, by host and shard.
	replicas map[string]map[uint64]uint64
}

// open takes a directory into use. Its error says what to do.
func open(d Directory) (_ *opened, err error) {
	if d.FS == nil {
		d.FS = vfs.Default
	}
	if d.RaftFS == nil {
		d.RaftFS = raftvfs.Default
	}
	o := &opened{Directory: d, logs: make(map[string]*raft.StoppedLog), replicas: make(map[string]map[uint64]uint64)}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	if o.dir, err = datadir.OpenStopped(d.FS, d.Path); err != nil {
		return nil, err
	}
	for _, host := range []string{systemHost, dataHost} {
		log, err := raft.OpenStoppedLog(d.RaftFS, o.dir.Raft(host))
		if err != nil {
			return nil, err
		}
		o.logs[host] = log
		if o.replicas[host], err = log.Replicas(); err != nil {
			return nil, err
		}
	}
	if err := copyState(d.FS, o.dir.State(), d.Work); err != nil {
		return nil, fmt.Errorf("copy state from %s to %s: %w", o.dir.State(), d.Work, err)
	}
	options := raft.StateOptions(d.FS, silent{})
	options.DisableAutomaticCompactions = true
	o.state, err = pebble.Open(d.Work, options)
	if err != nil {
		return nil, fmt.Errorf("open state of %s: %w", o.dir.State(), err)
	}
	return o, nil
}

// close gives a directory back.
func (o *opened) close() error {
	var errs []error
	if o.state != nil {
		errs = append(errs, o.state.Close())
	}
	for _, log := range o.logs {
		errs = append(errs, log.Close())
	}
	if o.dir != nil {
		errs = append(errs, o.dir.Close())
	}
	return errors.Join(errs...)
}

// copyState makes a copy of a state that nobody has open. Tables are never written to again, so that links to
// them do.
func copyState(fs vfs.FS, from, to string) error {
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	if err := fs.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		clone := vfs.Copy
		switch {
		case name == "LOCK":
			continue
		case filepath.Ext(name) == ".sst":
			clone = vfs.LinkOrCopy
		}
		if err := clone(fs, fs.PathJoin(from, name), fs.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// replica is a directory's replica of a shard.
type replica struct {
	*raft.Offline

	of *opened
}

// replica opens the directory's replica of a shard, or returns nil if there is none that has anything.
func (o *opened) replica(host string, shardID uint64) (*replica, error) {
	id, ok := o.replicas[host][shardID]
	if !ok {
		return nil, nil
	}
	r, err := raft.OpenOffline(o.state, o.logs[host], shardID, id)
	if err != nil {
		return nil, fmt.Errorf("%s: shard %d: %w", o.Path, shardID, err)
	}
	if o.dir.Identity().Joining && r.Last().Index == 0 {
		return nil, nil // it has not heard of what the others began with
	}
	return &replica{r, o}, nil
}

// systemState opens the directory's replica of the system shard, and returns its state behind all of its log.
func (o *opened) systemState() (*replica, *system.State, error) {
	r, err := o.replica(systemHost, placement.SystemShard)
	if err == nil && r == nil {
		err = fmt.Errorf("%w: %s has no replica of the system shard", ErrNotCovered, o.Path)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := system.Open(o.state, raft.Prefix(placement.SystemShard, r.Replica().ReplicaID()))
	if err == nil {
		err = r.Replay(m)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: system shard: %w", o.Path, err)
	}
	return r, m.State(), nil
}

// silent is the logger of states: what matters comes as an error.
type silent struct{}

// Infof does nothing.
func (silent) Infof(string, ...any) {}

// Errorf does nothing.
func (silent) Errorf(string, ...any) {}

// Fatalf panics: the engine counts on it that it does not return.
func (silent) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // the engine counts on it that Fatalf does not return
}
