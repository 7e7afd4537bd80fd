package harness

import (
	"fmt"
	"os/exec"
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
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "etcdctl"), "go.etcd.io/etcd/etcdctl/v3")
	cmd.Dir = filepath.Join("..", "..", "tools")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build etcdctl: %w: %s", err, out)
	}
	return dir, nil
})
