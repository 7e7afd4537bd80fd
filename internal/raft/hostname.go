package raft

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/lni/dragonboat/v4/raftpb"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/raftlog"
)

// logOwner is the file in which dragonboat says whose a log is.
const logOwner = "dragonboat.ds"

var (
	// errManyHosts is returned for a log directory that holds the logs of several hosts.
	errManyHosts = errors.New("the directory holds the logs of several hosts")
	// errBadOwner is returned for an owner file that can't be read.
	errBadOwner = errors.New("the file is damaged")
)

// nameHost gives the log in dir the name of this host, host. dragonboat makes the host's name an
// element of the log's path, and refuses a log that was made under another; but nothing in
// the log depends on it, and hosts are renamed, as containers are at each start.
//
// The name that dragonboat wrote down is emptied, which it takes for any name, and then the
// directory is renamed. Cut in between, the next start goes on.
func nameHost(fsys raftvfs.FS, dir, host string) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	old := ""
	for _, name := range names {
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		switch {
		case err != nil:
			return fmt.Errorf("look at %s: %w", fsys.PathJoin(dir, name), err)
		case !info.IsDir():
		case old != "":
			return fmt.Errorf("%w: %q and %q below %s; keep the one that was in use and move the other away", errManyHosts, old, name, dir)
		default:
			old = name
		}
	}
	if old == "" || old == host {
		return nil
	}
	if err := writeHost(fsys, dir, ""); err != nil {
		return fmt.Errorf("rewrite %s: %w", fsys.PathJoin(dir, logOwner), err)
	}
	if err := fsys.Rename(fsys.PathJoin(dir, old), fsys.PathJoin(dir, host)); err != nil {
		return fmt.Errorf("name log after host: %w", err)
	}
	if err := raftlog.SyncDir(fsys, dir); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// writeHost replaces the host's name in the owner file: the last half of an MD5 sum, and
// the message that it is of.
func writeHost(fsys raftvfs.FS, dir, host string) error {
	path := fsys.PathJoin(dir, logOwner)
	f, err := fsys.Open(path)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if len(b) < md5.Size/2 || !bytes.Equal(b[:md5.Size/2], ownerSum(b[md5.Size/2:])) {
		return errBadOwner
	}
	var owner raftpb.RaftDataStatus
	if err := owner.Unmarshal(b[md5.Size/2:]); err != nil {
		return fmt.Errorf("%w: %w", errBadOwner, err)
	}
	if owner.Hostname == host {
		return nil
	}
	owner.Hostname = host
	content, err := owner.Marshal()
	if err != nil {
		return err
	}
	return replaceFile(fsys, dir, logOwner, append(ownerSum(content), content...))
}

func ownerSum(content []byte) []byte {
	sum := md5.Sum(content)
	return sum[md5.Size/2:]
}

// replaceFile replaces a file, durably and as a whole.
func replaceFile(fsys raftvfs.FS, dir, name string, content []byte) error {
	path := fsys.PathJoin(dir, name)
	f, err := fsys.Create(path + ".new")
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
	if err := fsys.Rename(path+".new", path); err != nil {
		return err
	}
	return raftlog.SyncDir(fsys, dir)
}
