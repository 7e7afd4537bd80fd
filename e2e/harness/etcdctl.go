package harness

import (
	"fmt"
	"path/filepath"
	"sync"
)

// Etcdctl builds etcd's command-line client once, from the tools module, and
// returns the folder that it is in.
var Etcdctl = sync.OnceValues(func() (string, error) {
	dir, err := Dir("latchkey-etcdctl-")
	if err != nil {
		return "", err
	}
	if err := buildShared(filepath.Join("..", "..", "tools"), "go.etcd.io/etcd/etcdctl/v3", filepath.Join(dir, "etcdctl")); err != nil {
		return "", fmt.Errorf("build etcdctl: %w", err)
	}
	return dir, nil
})
