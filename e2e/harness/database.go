package harness

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// PostgresPrograms returns the folder of Debian's newest PostgreSQL.
func PostgresPrograms() (string, error) {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err == nil && len(dirs) == 0 {
		err = errors.New("no PostgreSQL below /usr/lib/postgresql")
	}
	if err != nil {
		return "", err
	}
	return dirs[len(dirs)-1], nil
}

// UserOf returns whom a database server is to be run by where the test is run by root,
// which it refuses; nil where it is not.
func UserOf(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("group of %s: %w", name, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
