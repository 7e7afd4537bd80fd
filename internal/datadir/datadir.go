// Package datadir owns what a data directory says of itself: who its node is,
// and what was decided at the first start and can never change.
//
//	LOCK          held while a process uses the directory
//	node.json     the identity, written whole or not at all
//	raft/         the Raft logs, one directory a host
//	state/        the state of all replicas
//	tmp/          files that no restart keeps
//	restore/      the backup that the node begins with, until its first start has loaded it
//	*/INSTANCE    the marker that ties raft/ and state/ to node.json
//
// The logs and the state share one fate: a replica whose log was lost may have
// voted, and one whose state was lost may have acknowledged. A directory whose
// parts don't belong together is refused.
package datadir

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Format is the version of the layout that this program reads and writes. In format 1 the Raft log
// was dragonboat's.
const Format = 2

// laterFormat is that of a directory which programs would misread that read Format alone: one whose node begins with a backup
// that has not been loaded yet, where they would begin with nothing, and one whose node has joined a cluster, where
// they would take its replicas for those of another node. They refuse it.
const laterFormat = 3

const (
	lockFile     = "LOCK"
	identityFile = "node.json"
	markerFile   = "INSTANCE"
	raftDir      = "raft"
	stateDir     = "state"
	newSuffix    = ".new" // of a file that is to replace another
)

// Lost says what to do about a node whose data can't be put back.
const Lost = "or replace it: remove the member, add it again, and start it with an empty directory (etcdctl member remove, member add; see docs/operations.md)"

// etcdParts are what etcd keeps below a data directory: its state, and its log unless
// that is kept elsewhere.
var etcdParts = []string{"member/snap", "member/wal"}

var (
	// ErrInUse is returned when another process uses the directory.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrLogShards is returned when another number of log shards is asked for
	// than the directory was made with.
	ErrLogShards = errors.New("number of log shards changed")
	// ErrTorn is returned when the parts of the directory don't belong together.
	ErrTorn = errors.New("data directory is not whole")
	// ErrEtcd is returned where a node would be made although etcd's data are there.
	ErrEtcd = errors.New("data directory is etcd's")
	// ErrFormat is returned for a directory that this program can't read.
	ErrFormat = errors.New("data directory has an unknown format")
	// ErrNothing is returned by OpenStopped where there is no node that has been a member of a cluster.
	ErrNothing = errors.New("data directory holds nothing of a cluster")
)

// Identity is what was decided at the first start.
type Identity struct {
	// Format is the version of the layout.
	Format int `json:"format"`
	// NodeID is the node's id in its cluster.
	NodeID uint64 `json:"node_id,string"`
	// DeploymentID keeps clusters apart that reach each other by mistake.
	DeploymentID uint64 `json:"deployment_id,string"`
	// PeerSecret is what the cluster's nodes prove to each other that they know, in hex.
	PeerSecret string `json:"peer_secret"`
	// JoinSecret is what nodes prove that ask to join, in hex, and Salt what PeerSecret follows from beside the
	// cluster's token, which is all that those know. Both are empty where nothing is.
	JoinSecret string `json:"join_secret,omitempty"`
	Salt       string `json:"salt,omitempty"`
	// Nodes are the cluster's first nodes by id, or those that were members when this one joined, this one among
	// them; none stands for this one alone.
	Nodes []Member `json:"nodes,omitempty"`
	// LogShards is the number of workers that write the data shards' Raft log.
	LogShards uint64 `json:"log_shards"`
	// Instance is drawn at random for this directory.
	Instance string `json:"instance"`
	// Replica is the id of the replicas of a node that joined a cluster that was there, in each shard; 0 for one of the
	// cluster's first nodes.
	Replica uint64 `json:"replica,omitempty"`
	// Restore says what the node begins with; nil for nothing.
	Restore *Restore `json:"restore,omitempty"`
	// Joining says that the node joins, or joined, a cluster that was there: until Whole is set, the instance is
	// all that holds.
	Joining bool `json:"joining,omitempty"`
	// Whole is set once the first start has made all files. Until then nothing in the
	// directory is worth keeping.
	Whole bool `json:"whole"`
}

// format is the version that a directory has with this identity.
func (id *Identity) format() int {
	if id.Restore != nil && !id.Whole || id.Joining {
		return laterFormat
	}
	return Format
}

// Member is one of a cluster's first nodes.
type Member struct {
	ID   uint64 `json:"id,string"`
	Name string `json:"name"`
	// PeerURLs are where it was to be reached at first.
	PeerURLs []string `json:"peer_urls"`
}

// Config says what a node wants of its directory.
type Config struct {
	// FS is the file system and Path the directory there.
	FS   vfs.FS
	Path string
	// New is the identity for a directory that is made now. Format, Instance and
	// Whole are filled in.
	New Identity
	// Join, unless nil, is asked who the node is that a new directory is for: one that becomes a member of a
	// cluster that is there. It is given the directory's instance, which is written down before, so that a first start that was cut
	// asks for the same again.
	Join func(instance string) (Identity, error)
	// Former, unless empty, is where etcd would have kept the data of this node: with
	// etcd's data there no node is made, nor with etcd's data in Path.
	Former string
	// LogShards, unless 0, was asked for explicitly.
	LogShards uint64
}

// Dir is a data directory in use.
type Dir struct {
	fs   vfs.FS
	path string
	id   Identity
	lock io.Closer
}

// Open takes the directory into use, making it if there is none.
func Open(c Config) (*Dir, error) {
	if err := refuseEtcd(c); err != nil {
		return nil, err
	}
	if err := makeDurably(c.FS, c.Path); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := c.FS.Lock(c.FS.PathJoin(c.Path, lockFile))
	if err != nil {
		return nil, lockError(c.Path, err)
	}
	d := &Dir{fs: c.FS, path: c.Path, lock: lock}
	if err := d.open(c); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

// lockError says why the lock of the directory can't be had: another process has it, or the
// file can't be made or the file system has no locks.
func lockError(path string, err error) error {
	var (
		file  *fs.PathError
		errno syscall.Errno
	)
	switch {
	case errors.Is(err, fs.ErrPermission) && errors.As(err, &file), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("take data directory %s into use: %w; the user that the node runs as must be able to write there", path, err)
	case errors.As(err, &file), errors.As(err, &errno) && errno != syscall.EAGAIN && errno != syscall.EACCES:
		return fmt.Errorf("take data directory %s into use: %w", path, err)
	}
	return fmt.Errorf("%w: %s (%w)", ErrInUse, path, err)
}

// refuseEtcd refuses to make a node where etcd kept one: it would be empty, and so would
// a cluster of such nodes be that took the place of etcd's. Nothing is changed. A node
// that has been made stays one, whatever lies beside it.
func refuseEtcd(c Config) error {
	d := &Dir{fs: c.FS, path: c.Path}
	if _, err := d.read(); err != nil || d.id.Whole {
		return nil //nolint:nilerr // open says what is wrong
	}
	for _, dir := range []string{c.Path, c.Former} {
		if dir == "" {
			continue
		}
		for _, part := range etcdParts {
			path := c.FS.PathJoin(dir, part)
			_, err := c.FS.Stat(path)
			if err == nil {
				return fmt.Errorf("%w: there is %s, which this program can't use, and no empty node is made in its place; "+
					"start a new cluster with another --data-dir, from a snapshot of that etcd (latchkey snapshot restore) or, "+
					"while both run, by etcdctl make-mirror (see docs/migration.md)", ErrEtcd, path)
			}
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				return fmt.Errorf("look for etcd's data: %w", err)
			}
		}
	}
	return nil
}

// makeDurably makes a directory, and those above it, such that they are there
// after a power cut.
func makeDurably(fsys vfs.FS, path string) error {
	var parents []string
	for dir := path; ; {
		_, err := fsys.Stat(dir)
		parent := fsys.PathDir(dir)
		if err == nil || parent == dir {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parents = append(parents, parent)
		dir = parent
	}
	if err := fsys.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, dir := range parents {
		if err := syncDir(fsys, dir); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dir) open(c Config) error {
	found, err := d.read()
	if err != nil {
		return err
	}
	if found {
		err = d.check(c)
	} else {
		err = d.refuseParts()
	}
	if err != nil {
		return err
	}
	if d.id.Whole {
		err = errors.Join(d.checkMarkers(), d.removeBackup())
	} else {
		err = d.begin(c)
	}
	if err != nil {
		return err
	}
	return d.emptyTemp()
}

// emptyTemp removes what an earlier process left half done.
func (d *Dir) emptyTemp() error {
	err := d.fs.RemoveAll(d.Temp())
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = d.fs.MkdirAll(d.Temp(), 0o700)
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", d.Temp(), err)
	}
	return nil
}

// read loads the identity and reports whether there is one.
func (d *Dir) read() (bool, error) {
	b, err := d.readFile(d.fs.PathJoin(d.path, identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read identity: %w", err)
	}
	if err := json.Unmarshal(b, &d.id); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrTorn, d.fs.PathJoin(d.path, identityFile), err)
	}
	return true, nil
}

// refuseParts refuses data without an identity: it would belong to nobody.
func (d *Dir) refuseParts() error {
	for _, part := range []string{raftDir, stateDir, restoreDir} {
		if _, err := d.fs.Stat(d.fs.PathJoin(d.path, part)); err == nil {
			return fmt.Errorf("%w: %s has a directory %s but no %s; put the file back, or move the directory away to start an empty node",
				ErrTorn, d.path, part, identityFile)
		}
	}
	return nil
}

// create draws an instance and writes the identity, in the place of that of a first
// start that was cut, if any.
func (d *Dir) create(c Config) error {
	if d.id.Restore != nil {
		if d.id.NodeID != c.New.NodeID {
			return fmt.Errorf("%w: %s", ErrRestored, d.path)
		}
		c.New = d.id
	}
	if c.Join != nil {
		return d.join(c)
	}
	instance, err := newInstance()
	if err != nil {
		return err
	}
	return d.become(c, c.New, instance)
}

// newInstance draws an instance.
func newInstance() (string, error) {
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return "", fmt.Errorf("draw instance: %w", err)
	}
	return hex.EncodeToString(seed[:]), nil
}

// join writes an instance, unless an earlier attempt has, and then the identity of the node that the cluster
// gives to it.
func (d *Dir) join(c Config) error {
	instance := d.id.Instance
	if !d.id.Joining {
		var err error
		if instance, err = newInstance(); err != nil {
			return err
		}
		d.id = Identity{Instance: instance, Joining: true}
		if err := d.write(); err != nil {
			return err
		}
	}
	id, err := c.Join(instance)
	if err != nil {
		return err
	}
	id.Joining = true
	return d.become(c, id, instance)
}

// become writes an identity.
func (d *Dir) become(c Config, id Identity, instance string) error {
	d.id = id
	d.id.Instance, d.id.Whole = instance, false
	if c.LogShards != 0 {
		d.id.LogShards = c.LogShards
	}
	return d.write()
}

func (d *Dir) check(c Config) error {
	switch {
	case d.id.Format < Format:
		return fmt.Errorf("%w: %d, this version reads %d: start the version that made %s, and copy its keys to a new cluster of this one with etcdctl make-mirror",
			ErrFormat, d.id.Format, Format, d.path)
	case d.id.Format > d.id.format():
		return fmt.Errorf("%w: %d, this version reads %d: a later version made %s, start that one", ErrFormat, d.id.Format, Format, d.path)
	case !d.id.Whole: // nothing in it holds yet
	case c.LogShards != 0 && c.LogShards != d.id.LogShards:
		return fmt.Errorf("%w: %s was made with %d, %d asked for", ErrLogShards, d.path, d.id.LogShards, c.LogShards)
	}
	return nil
}

// begin makes an identity and the places of all files, with their markers. What an
// earlier first start left there when it was cut is removed: the logs' own files may be
// torn, and the node has not served with them.
func (d *Dir) begin(c Config) error {
	if err := d.create(c); err != nil {
		return err
	}
	for _, part := range []string{raftDir, stateDir} {
		dir := d.fs.PathJoin(d.path, part)
		if err := d.fs.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("empty %s: %w", dir, err)
		}
		if err := d.fs.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
		if err := d.writeFile(dir, markerFile, []byte(d.id.Instance)); err != nil {
			return fmt.Errorf("mark %s: %w", dir, err)
		}
	}
	// Before the identity says that they are there: a cut may leave either of two changes without
	// the other.
	if err := syncDir(d.fs, d.path); err != nil {
		return fmt.Errorf("make the parts of %s: %w", d.path, err)
	}
	return nil
}

// Finish says that all files have been made. It is called before the node serves.
func (d *Dir) Finish() error {
	if d.id.Whole {
		return nil
	}
	d.id.Whole = true
	if err := d.write(); err != nil {
		return err
	}
	return d.removeBackup()
}

func (d *Dir) checkMarkers() error {
	for _, part := range []string{raftDir, stateDir} {
		dir := d.fs.PathJoin(d.path, part)
		b, err := d.readFile(d.fs.PathJoin(dir, markerFile))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: %s is gone or empty; put it back, %s", ErrTorn, dir, Lost)
		case err != nil:
			return fmt.Errorf("read marker: %w", err)
		case string(b) != d.id.Instance:
			return fmt.Errorf("%w: %s belongs to another data directory; put the right one back, %s",
				ErrTorn, dir, Lost)
		}
	}
	return nil
}

func (d *Dir) write() error {
	d.id.Format = d.id.format()
	b, err := json.MarshalIndent(d.id, "", "  ")
	if err == nil {
		err = d.writeFile(d.path, identityFile, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// writeFile replaces a file, durably and as a whole.
func (d *Dir) writeFile(dir, name string, content []byte) error {
	path := d.fs.PathJoin(dir, name)
	f, err := d.fs.Create(path+newSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.fs.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return syncDir(d.fs, dir)
}

func syncDir(fsys vfs.FS, path string) error {
	f, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *Dir) readFile(path string) ([]byte, error) {
	f, err := d.fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// Identity returns what the directory says of its node.
func (d *Dir) Identity() Identity { return d.id }

// Raft returns the directory of the Raft log of the host called name.
func (d *Dir) Raft(name string) string { return d.fs.PathJoin(d.path, raftDir, name) }

// State returns the directory of the state.
func (d *Dir) State() string { return d.fs.PathJoin(d.path, stateDir, "db") }

// Temp returns the directory for files that are not kept over a restart.
func (d *Dir) Temp() string { return d.fs.PathJoin(d.path, "tmp") }

// Close lets another process use the directory.
func (d *Dir) Close() error { return d.lock.Close() }
