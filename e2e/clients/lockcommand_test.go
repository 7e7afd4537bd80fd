package clients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// latchkey is a command of the binary for a server.
func latchkey(t *testing.T, p *harness.Process, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+p.Addr)
	return cmd
}

// outcome runs a command to its end.
func outcome(t *testing.T, cmd *exec.Cmd) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func TestLockCommand(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"lock a -- sh -c exit\u00a07", 7, ""},
		{"lock a --ttl 5s -- true", 0, ""},
		{"lock --shared a -- true", 0, ""},
		{"lock a --permits 1 --of 3 -- true", 0, ""},
		{"lock a -- no-such-program", 1, "no-such-program"},
		{"lock", 2, "no name"},
		{"lock a true", 2, "stands behind --"},
		{"lock a --ttl 1ms -- true", 2, "--ttl"},
		{"lock a --unknown", 2, "unknown"},
		{"lock a --shared --permits 1 --of 2 -- true", 1, "option"},
		{"locks", 2, "no command"},
		{"locks show", 2, "arguments"},
		{"locks force-release a x", 2, "no token"},
		{"locks force-release a 77", 1, ""},
		{"lock --endpoints 127.0.0.1:1 a --wait 0 -- true", 1, ""},
	} {
		args := strings.Fields(strings.ReplaceAll(tc.args, "\u00a0", "\x00"))
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ")
		}
		code, _, said := outcome(t, latchkey(t, p, args...))
		if code != tc.code || !strings.Contains(said, tc.says) {
			t.Errorf("%s: %d, %q; want %d, %q", tc.args, code, said, tc.code, tc.says)
		}
	}
	var tokens [2]int64
	for i := range tokens {
		_, out, _ := outcome(t, latchkey(t, p, "lock", "a", "--", "sh", "-c", "echo $LATCHKEY_FENCING_TOKEN"))
		if _, err := fmt.Sscan(out, &tokens[i]); err != nil {
			t.Fatalf("a command found %q for its token: %v", out, err)
		}
	}
	if tokens[0] <= 0 || tokens[1] <= tokens[0] {
		t.Errorf("tokens %v", tokens)
	}
}

// holding starts a command under a lock and returns when it runs. It makes a file when it is
// asked to end, and goes on.
func holding(t *testing.T, p *harness.Process, args ...string) (cmd *exec.Cmd, asked string) {
	t.Helper()
	runs := filepath.Join(t.TempDir(), "runs")
	asked = runs + ".asked"
	cmd = latchkey(t, p, append(args, "--", "sh", "-c", "trap 'touch "+asked+"' TERM; touch "+runs+"; while :; do sleep 0.1; done")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	waitForFile(t, runs)
	return cmd, asked
}

func waitForFile(t *testing.T, name string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			return
		}
		if time.Since(began) > harness.LongWait {
			t.Fatalf("no file %s", name)
		}
	}
}

func TestLocksCommand(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	holder, asked := holding(t, p, "lock", "jobs/nightly", "--ttl", "4s")
	if code, _, said := outcome(t, latchkey(t, p, "lock", "jobs/nightly", "--wait", "0", "--", "true")); code != 75 || !strings.Contains(said, "not free") {
		t.Errorf("a lock that is held: %d, %q", code, said)
	}
	if code, _, said := outcome(t, latchkey(t, p, "lock", "jobs/nightly", "--wait", "100ms", "--", "true")); code != 75 || !strings.Contains(said, "in time") {
		t.Errorf("a lock that is held for longer: %d, %q", code, said)
	}
	_, out, _ := outcome(t, latchkey(t, p, "locks", "ls", "--json"))
	var listed struct {
		Name    string `json:"lock_key"`
		Holders []struct {
			Token int64 `json:"fencing_token"`
		} `json:"holders"`
	}
	if err := json.Unmarshal([]byte(out), &listed); err != nil || listed.Name != "jobs/nightly" || len(listed.Holders) != 1 {
		t.Fatalf("locks: %s, %v", out, err)
	}
	for _, args := range [][]string{{"locks", "ls", "jobs/"}, {"locks", "show", "jobs/nightly"}} {
		if _, out, said := outcome(t, latchkey(t, p, args...)); !strings.Contains(out, fmt.Sprint(listed.Holders[0].Token)) {
			t.Errorf("%v: %s%s", args, out, said)
		}
	}
	watch := latchkey(t, p, "locks", "watch", "jobs/nightly", "--json")
	events := json.NewDecoder(must(watch.StdoutPipe()))
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Process.Kill(); _ = watch.Wait() })
	next := func() (event, reason string) {
		var e struct{ Event, Reason string }
		if err := events.Decode(&e); err != nil {
			t.Fatal(err)
		}
		return e.Event, e.Reason
	}
	for event := ""; event != "granted"; {
		event, _ = next()
	}
	token := fmt.Sprint(listed.Holders[0].Token)
	if code, _, said := outcome(t, latchkey(t, p, "locks", "force-release", "jobs/nightly", token, "--reason", "stuck")); code != 0 {
		t.Fatalf("force-release: %d, %q", code, said)
	}
	if event, reason := next(); event != "released" || reason != "stuck" {
		t.Errorf("watched %q because of %q", event, reason)
	}
	// The command is asked to end, and killed as it does not.
	waitForFile(t, asked)
	if err := holder.Wait(); err == nil || holder.ProcessState.ExitCode() != 1 {
		t.Errorf("a command that lost its lock ended with %v", err)
	}
}

// A command that does not end when it is asked is killed before the lease can have ended,
// where the server can't be reached.
func TestLockCommandEndsInTime(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	cmd, asked := holding(t, p, "lock", "a", "--ttl", "4s")
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	err := cmd.Wait()
	if after := time.Since(stopped); after >= 4*time.Second || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended %v after the server stopped, with %v", after, err)
	}
	if _, err := os.Stat(asked); err != nil {
		t.Errorf("killed without having been asked: %v", err)
	}
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// A command in a deadlock says who waits for what.
func TestLockCommandDeadlock(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	_, _ = holding(t, p, "lock", "one", "--client", "a")
	_, _ = holding(t, p, "lock", "two", "--client", "b")
	older := latchkey(t, p, "lock", "one", "--client", "b", "--", "true")
	if err := older.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = older.Process.Kill(); _ = older.Wait() })
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, out, _ := outcome(t, latchkey(t, p, "locks", "show", "one", "--json")); strings.Contains(out, `"b"`) {
			break
		}
		if time.Since(began) > harness.LongWait {
			t.Fatal("nobody waits")
		}
	}
	code, _, said := outcome(t, latchkey(t, p, "lock", "two", "--client", "a", "--wait", "5m", "--", "true"))
	if code != 75 || !strings.Contains(said, `"a" waits for "two" behind "b", "b" waits for "one" behind "a"`) {
		t.Errorf("%d, %q", code, said)
	}
}
