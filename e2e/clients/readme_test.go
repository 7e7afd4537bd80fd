package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

const defaultAddr = "127.0.0.1:2379"

// blocks returns the code blocks of README.md in a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllSubmatch(readme, -1) {
		found = append(found, string(m[1]))
	}
	if len(found) == 0 {
		t.Fatalf("README.md has no %s block", language)
	}
	return found
}

// The first command of the README starts a working server.
func TestReadmeStart(t *testing.T) {
	start := strings.TrimSpace(blocks(t, "sh")[0])
	if start != "go run ./cmd/latchkey" {
		t.Fatalf("README.md starts with %q", start)
	}
	url := "http://" + harness.FreeAddr(t)
	cmd := exec.Command("sh", "-c", "exec "+start)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "LATCHKEY_DATA_DIR="+filepath.Join(t.TempDir(), "data"),
		"LATCHKEY_LISTEN_CLIENT_URLS="+url, "LATCHKEY_ADVERTISE_CLIENT_URLS="+url, "LATCHKEY_LISTEN_PEER_URLS="+harness.AnyPeerURL)
	// The go command does not pass signals on: the group gets them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no healthy server: %s", &out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The lock in the README runs, and prints a token.
func TestReadmeLock(t *testing.T) {
	p := harness.NewProcess(t)
	program := strings.ReplaceAll(blocks(t, "go")[0], defaultAddr, p.Addr)
	path := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	var last int64
	for range 2 {
		out, err := exec.Command("go", "run", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var token int64
		if _, err := fmt.Sscanf(string(out), "fencing token %d", &token); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
	}
}

// The etcdctl commands in the README do what they say.
func TestReadmeEtcdctl(t *testing.T) {
	p := harness.NewProcess(t)
	dir, err := harness.Etcdctl()
	if err != nil {
		t.Fatal(err)
	}
	var script string
	for _, b := range blocks(t, "sh") {
		if strings.HasPrefix(b, "etcdctl ") {
			script = b
		}
	}
	cmd := exec.Command("bash", "-euc", script)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS="+p.Addr)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"greeting\nhello", "granted with TTL(60s)", "have the lock with token ", "SUCCESS", p.Addr} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	c := p.Client()
	defer c.Close()
	r, err := c.Get(t.Context(), "greeting")
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "goodbye" {
		t.Errorf("greeting is %v, %v", r, err)
	}
}

// The script in the README starts three nodes that serve each other's keys.
func TestReadmeThreeNodes(t *testing.T) {
	tools, err := harness.Etcdctl()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(dir, "latchkey")); err != nil {
		t.Fatal(err)
	}
	var script string
	for _, b := range blocks(t, "sh") {
		if strings.Contains(b, "start node3 ") {
			script = b
		}
	}
	build := "go build -o latchkey ./cmd/latchkey\ngo build -C tools -o .. go.etcd.io/etcd/etcdctl/v3\n"
	if !strings.HasPrefix(script, build) {
		t.Fatalf("the script begins otherwise than with %q:\n%s", build, script)
	}
	stop := blocks(t, "sh")
	stop = stop[slices.IndexFunc(stop, func(b string) bool { return strings.HasPrefix(b, "kill ") }):]
	script += stop[0]
	addrs := make(map[string]string)
	script = regexp.MustCompile(`\b[123]23(79|80)\b`).ReplaceAllStringFunc(script, func(port string) string {
		if addrs[port] == "" {
			addrs[port] = harness.FreeAddr(t)
		}
		_, port, _ = strings.Cut(addrs[port], ":")
		return port
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", strings.TrimPrefix(script, build))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
	// Were a node left, what the script prints must not wait for it, and the group ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if killed := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(killed, syscall.ESRCH) {
		t.Errorf("a node is left: %v", killed)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v: %s", err, &out)
	}
	for _, want := range []string{
		"node1", "node2", "node3", "greeting\nhello from node1", "IS LEADER",
		addrs["12379"], addrs["22379"], addrs["32379"], addrs["12380"], addrs["22380"], addrs["32380"],
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}

// ETCD_LOCK_REV of etcdctl lock is a token, as the README says: the create revision of the
// holder's key, or a later one of a holder that had to wait, above those of holders before.
func TestLockRevOfEtcdctl(t *testing.T) {
	p := harness.NewProcess(t)
	c := p.Client()
	defer c.Close()
	ctl := newCtl(t, p)
	ctl.env = append(ctl.env, "ETCDCTL="+ctl.bin)
	const command = `echo $ETCD_LOCK_REV && "$ETCDCTL" get "$ETCD_LOCK_KEY" -w fields | sed -n 's/^"CreateRevision" : //p'`
	lock := func() (rev, created int64) {
		t.Helper()
		out, err := ctl.try("", "lock", "l", "--", "sh", "-c", command)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if _, err := fmt.Sscan(out, &rev, &created); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return rev, created
	}
	first, created := lock()
	if first != created || first == 0 {
		t.Errorf("revision %d of a lock that was free, created at %d", first, created)
	}
	session, err := concurrency.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	holder := concurrency.NewMutex(session, "l")
	if err := holder.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := holder.Header().Revision
	type answer struct{ rev, created int64 }
	waited := make(chan answer, 1)
	go func() {
		rev, created := lock()
		waited <- answer{rev, created}
	}()
	for end := time.Now().Add(harness.LongWait); ; {
		r, err := c.Get(t.Context(), "l/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || time.Now().After(end) {
			t.Fatalf("etcdctl does not wait for the lock: %v, %v", r, err)
		}
		if r.Count == 2 {
			break
		}
	}
	if err := holder.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := <-waited
	if first >= held || held >= a.created || a.created > a.rev {
		t.Errorf("tokens %d, %d, then revision %d of a key created at %d", first, held, a.rev, a.created)
	}
}
