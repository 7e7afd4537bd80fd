//go:build clients

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// nodePrograms is a folder with the programs for Node and the package that they
// need, which npm installs there.
var nodePrograms = sync.OnceValues(func() (string, error) {
	dir, err := harness.Dir("latchkey-node-")
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "node"))); err != nil {
		return "", fmt.Errorf("copy programs: %w", err)
	}
	install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install npm packages: %w: %s", err, out)
	}
	return dir, nil
})

// nodeClient is npm's etcd3.
func nodeClient(tb testing.TB) *otherClient {
	tb.Helper()
	dir, err := nodePrograms()
	harness.Must(tb, dir, err)
	return &otherClient{suffix: ".js", run: func(program string, args ...string) *exec.Cmd {
		return exec.Command("node", append([]string{filepath.Join(dir, program)}, args...)...)
	}}
}

// etcd3 of npm does what it offers.
func TestOtherNode(t *testing.T) {
	o := nodeClient(t)
	o.topics(t, "kv", "txn", "watch", "lease", "lock", "election", "stm", "namespace", "auth")
	t.Run("auth over TLS", func(t *testing.T) { o.overTLS(t, "auth") })
}

// A watch of npm's etcd3 misses nothing when the server is killed.
func TestOtherNodeResumes(t *testing.T) {
	nodeClient(t).follows(t, "Put", "Delete")
}

// Processes with npm's etcd3 pass locks round. What they count, which the locks
// alone guard, loses nothing.
func TestOtherNodePassesLocksRound(t *testing.T) {
	o, p := nodeClient(t), harness.NewProcess(t)
	c := p.Client()
	defer c.Close()
	const processes, locks = 5, 2
	rounds := harness.Sized(12, 200)
	var cmds []*exec.Cmd
	for i := range locks {
		put(t, c, fmt.Sprintf("count/%d", i), "0")
	}
	for range processes {
		cmds = append(cmds, o.command(t, "turns", p.Addr, strconv.Itoa(locks), strconv.Itoa(rounds)))
	}
	holds := turns(t, cmds...)
	wantPrompt(t, holds)
	checkHolds(t, holds, locks, processes*locks*rounds)
	for i := range locks {
		wantCount(t, c, fmt.Sprintf("count/%d", i), processes*rounds)
	}
}
