//go:build clients

package clients

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// pythonClient is Debian's python3-etcd3, which the system's own python3 has.
func pythonClient() *otherClient {
	return &otherClient{suffix: ".py", run: func(program string, args ...string) *exec.Cmd {
		return exec.Command("/usr/bin/python3",
			append([]string{"-B", filepath.Join("testdata", "python", program)}, args...)...)
	}}
}

// python3-etcd3 does what it offers. It sends tokens of users by TLS only.
func TestOtherPython(t *testing.T) {
	o := pythonClient()
	o.topics(t, "kv", "txn", "watch", "lease", "lock")
	t.Run("auth over TLS", func(t *testing.T) { o.overTLS(t, "auth") })
}

// A watch of python3-etcd3 that goes on behind what it has seen misses nothing when
// the server is killed.
func TestOtherPythonResumes(t *testing.T) {
	pythonClient().follows(t, "put", "delete")
}

// Ten processes with python3-etcd3 pass a lock round: the package's own, and the
// queue of etcd's Go client, there alone and together with ten clients in Go. Each
// hand-over is prompt and none finds two holders (kragniz/python-etcd3#1107, 369).
func TestOtherPythonPassesLocksRound(t *testing.T) {
	const processes, name = 10, "mutex/0"
	for _, c := range []struct {
		name, kind string
		goClients  int
	}{
		{"lock", "lock", 0},
		{"queue", "queue", 0},
		{"queue with Go", "queue", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			rounds := harness.Sized(20, 200)
			p := harness.NewProcess(t)
			client := p.Client()
			defer client.Close()
			put(t, client, "count", "0")
			var cmds []*exec.Cmd
			for range processes {
				cmds = append(cmds, pythonClient().command(t, "turns", p.Addr, c.kind, name, strconv.Itoa(rounds)))
			}
			if c.goClients > 0 {
				cmds = append(cmds, worker(p.Addr, c.goClients, 1, rounds))
			}
			holds := turns(t, cmds...)
			wantPrompt(t, holds)
			checkHolds(t, holds, 1, (processes+c.goClients)*rounds)
			wantCount(t, client, "count", processes*rounds)
		})
	}
}
