package clients

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// ctl runs etcdctl against a server.
type ctl struct {
	t   *testing.T
	bin string
	env []string
}

func newCtl(t *testing.T, p *harness.Process) *ctl {
	t.Helper()
	dir, err := harness.Etcdctl()
	if err != nil {
		t.Fatal(err)
	}
	return &ctl{t: t, bin: filepath.Join(dir, "etcdctl"), env: append(os.Environ(), "ETCDCTL_ENDPOINTS="+p.Addr)}
}

func (c *ctl) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.bin, args...)
	cmd.Env = c.env
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// try runs a command and returns all that it printed.
func (c *ctl) try(stdin string, args ...string) (string, error) {
	out, err := c.command(stdin, args...).CombinedOutput()
	return string(out), err
}

// run runs a command that must succeed and print what matches want.
func (c *ctl) run(want string, args ...string) string {
	c.t.Helper()
	return c.feed("", want, args...)
}

func (c *ctl) feed(stdin, want string, args ...string) string {
	c.t.Helper()
	out, err := c.try(stdin, args...)
	if err != nil {
		c.t.Errorf("etcdctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	if !regexp.MustCompile(want).MatchString(out) {
		c.t.Errorf("etcdctl %s printed %q, want a match of %q", strings.Join(args, " "), out, want)
	}
	return out
}

// refused runs a command that must fail and print what matches want.
func (c *ctl) refused(want string, args ...string) {
	c.t.Helper()
	out, err := c.try("", args...)
	if err == nil || !regexp.MustCompile(want).MatchString(out) {
		c.t.Errorf("etcdctl %s: %v, printed %q, want a failure that matches %q", strings.Join(args, " "), err, out, want)
	}
}

// follow starts a command that goes on until the test ends, and returns what
// waits for its output to match.
func (c *ctl) follow(args ...string) (await func(want string)) {
	c.t.Helper()
	cmd := c.command("", args...)
	out := &syncBuffer{grown: make(chan struct{}, 1)}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return func(want string) {
		c.t.Helper()
		ctx, cancel := context.WithTimeout(c.t.Context(), harness.LongWait)
		defer cancel()
		re := regexp.MustCompile(want)
		for !re.MatchString(out.String()) {
			select {
			case <-out.grown:
			case <-ctx.Done():
				c.t.Fatalf("etcdctl %s printed %q, want a match of %q", strings.Join(args, " "), out.String(), want)
			}
		}
	}
}

// Every subcommand of etcdctl that applies to one node does its work.
func TestEtcdctl(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	c := newCtl(t, p)
	for _, group := range []struct {
		name string
		run  func(*testing.T, *ctl)
	}{
		{"keys", ctlKeys},
		{"watch", ctlWatch},
		{"leases", ctlLeases},
		{"maintenance", ctlMaintenance},
		{"locks", ctlLocks},
		{"mirror", ctlMirror},
		{"users", ctlUsers},
	} {
		t.Run(group.name, func(t *testing.T) { group.run(t, &ctl{t, c.bin, c.env}) })
	}
}

func ctlKeys(t *testing.T, c *ctl) {
	t.Helper()
	c.run("OK", "put", "k/1", "one")
	c.feed("from stdin", "OK", "put", "k/2")
	c.run("OK", "put", "k/3", "three", "--prev-kv")
	c.run("^k/1\none\n$", "get", "k/1")
	c.run("^from stdin\n$", "get", "k/2", "--print-value-only")
	c.run("k/1\n\nk/2\n\nk/3", "get", "k/", "--prefix", "--keys-only")
	c.run(`"Count" : 3`, "get", "k/", "--prefix", "--count-only", "-w", "fields")
	c.run("k/3\nthree", "get", "k/", "--prefix", "--sort-by=MODIFY", "--order=DESCEND", "--limit=1")
	c.run("(?s)^k/2.*k/3", "get", "k/2", "--from-key")
	c.run(`"Revision" : 4`, "get", "k/1", "-w", "fields")
	c.run("^$", "get", "k/1", "--rev=1")
	c.feed("value(\"k/1\") = \"one\"\n\nput k/1 uno\nget k/2\n\nget k/1\n\n", "(?s)SUCCESS.*OK.*from stdin", "txn")
	c.feed("create(\"k/1\") = \"0\"\n\nput k/1 eins\n\nget k/1\n\n", "(?s)FAILURE.*uno", "txn")
	c.run("^1\nk/1\nuno", "del", "k/1", "--prev-kv")
	c.run("^2\n", "del", "k/", "--prefix")
	c.run("compacted revision 5", "compaction", "5")
	c.run("compacted revision 6", "compaction", "6", "--physical")
	c.refused("required revision has been compacted", "compaction", "6")
	c.refused("required revision has been compacted", "get", "k/1", "--rev=3")
	c.refused("required revision is a future revision", "get", "k/1", "--rev=1000000")
}

func ctlWatch(t *testing.T, c *ctl) {
	t.Helper()
	await := c.follow("watch", "w/", "--prefix", "--prev-kv")
	// A watch says nothing until something happens: writes go on until it does.
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		await("PUT\nw/a")
	}()
	for n := 0; ; n++ {
		select {
		case <-seen:
			c.run("^1", "del", "w/a")
			await("DELETE\nw/a")
			return
		default:
			c.run("OK", "put", "w/a", fmt.Sprint(n))
		}
	}
}

func ctlLeases(t *testing.T, c *ctl) {
	t.Helper()
	asked := time.Now()
	out := c.run("granted with TTL\\(100s\\)", "lease", "grant", "100")
	id := strings.Fields(out)[1]
	c.run("OK", "put", "leased", "v", "--lease="+id)
	c.run("found 1 leases\n"+id, "lease", "list")
	want := regexp.MustCompile(id + ` granted with TTL\(100s\), remaining\((\d+)s\), attached keys\(\[leased\]\)`)
	shown := want.FindStringSubmatch(c.run(want.String(), "lease", "timetolive", id, "--keys"))
	if shown == nil {
		return
	}
	remaining, err := strconv.Atoi(shown[1])
	// Whole seconds, rounded down.
	if least := 100 - int(time.Since(asked)/time.Second) - 1; err != nil || remaining < least || remaining > 100 {
		t.Errorf("%s s remain (%v), want %d to 100", shown[1], err, least)
	}
	c.run("keepalived with TTL\\(100\\)", "lease", "keep-alive", id, "--once")
	c.run("revoked", "lease", "revoke", id)
	c.run("^$", "get", "leased")
	c.run("already expired", "lease", "timetolive", id)
	c.refused("requested lease not found", "lease", "revoke", id)
	c.refused("requested lease not found", "put", "leased", "v", "--lease="+id)
}

func ctlMaintenance(t *testing.T, c *ctl) {
	t.Helper()
	c.run("is healthy", "endpoint", "health")
	c.run("true", "endpoint", "health", "--cluster", "-w", "json")
	c.run(`3\.7\.3`, "endpoint", "status", "-w", "table")
	c.run(`"leader":[1-9]`, "endpoint", "status", "-w", "json")
	c.run(`, [0-9]+, [0-9]+`, "endpoint", "hashkv")
	c.run("started, default", "member", "list")
	c.run("^$", "alarm", "list")
	c.run("^$", "alarm", "disarm")
	c.run("Finished defragmenting", "defrag")
	path := filepath.Join(t.TempDir(), "snapshot")
	c.run("Snapshot saved", "snapshot", "save", path)
	if info, err := os.Stat(path); err != nil || info.Size()%512 != 32 {
		t.Errorf("snapshot: %v, %v", info, err)
	}
	server, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(server, "snapshot", "status", path, "--json").CombinedOutput(); err != nil || !strings.Contains(string(out), `"version":"1"`) {
		t.Errorf("status of the snapshot: %v: %s", err, out)
	}
	c.refused("bad leader transferee|not found", "move-leader", "1234")
	c.refused("member not found", "member", "remove", "1234")
	c.run("etcdctl version: 3.7.3", "version")
	c.run("PASS|FAIL", "check", "datascale", "--load=s", "--prefix=check/")
	c.run("bash completion", "completion", "bash")
}

func ctlLocks(t *testing.T, c *ctl) {
	t.Helper()
	c.run("^held\n$", "lock", "l", "--", "echo", "held")
	c.run("l/[0-9a-f]+ [1-9]", "lock", "l", "--", "sh", "-c", "echo $ETCD_LOCK_KEY $ETCD_LOCK_REV")
	c.refused("exit status 3", "lock", "l", "--", "sh", "-c", "exit 3")
	leader := c.follow("elect", "e", "candidate")
	leader("candidate")
	listener := c.follow("elect", "-l", "e")
	listener("e/[0-9a-f]+\ncandidate")
}

func ctlMirror(t *testing.T, c *ctl) {
	t.Helper()
	to := harness.NewProcess(t)
	c.run("OK", "put", "m/1", "before")
	c.follow("make-mirror", to.Addr, "--prefix=m/")
	mirror := newCtl(t, to)
	deadline := time.Now().Add(harness.LongWait)
	for n := 0; ; n++ {
		c.run("OK", "put", "m/2", fmt.Sprint(n))
		out, err := mirror.try("", "get", "m/", "--prefix")
		if err == nil && strings.Contains(out, "m/1\nbefore") && strings.Contains(out, "m/2\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the mirror has %q, %v", out, err)
		}
	}
}

func ctlUsers(t *testing.T, c *ctl) {
	t.Helper()
	c.run("User root created", "user", "add", "root:secret")
	c.run("Role root created", "role", "add", "root")
	c.run("Role root is granted to user root", "user", "grant-role", "root", "root")
	c.run("Role reader created", "role", "add", "reader")
	c.run("Role reader updated", "role", "grant-permission", "reader", "read", "u/", "u0")
	c.run("User ann created", "user", "add", "ann:pass")
	c.run("Role reader is granted", "user", "grant-role", "ann", "reader")
	c.run("Authentication Status: false", "auth", "status")
	c.run("OK", "put", "u/1", "v")
	c.run("Authentication Enabled", "auth", "enable")
	root := &ctl{t, c.bin, append(slices.Clone(c.env), "ETCDCTL_USER=root:secret")}
	defer root.run("Authentication Disabled", "auth", "disable")
	ann := &ctl{t, c.bin, append(slices.Clone(c.env), "ETCDCTL_USER=ann:pass")}
	c.refused("user name is empty", "get", "u/1")
	ann.run("u/1\nv", "get", "u/", "--prefix")
	ann.refused("permission denied", "put", "u/1", "w")
	ann.refused("permission denied", "get", "v")
	ann.refused("permission denied", "user", "list")
	(&ctl{t, c.bin, append(slices.Clone(c.env), "ETCDCTL_USER=ann:wrong")}).refused("authentication failed", "get", "u/1")
	root.run("ann\nroot", "user", "list")
	root.run("(?s)User: ann\nRoles: reader", "user", "get", "ann")
	root.run("(?s)Role reader.*KV Read:.*u/", "role", "get", "reader")
	root.run("reader\nroot", "role", "list")
	root.feed("new\nnew\n", "Password updated", "user", "passwd", "ann", "--interactive=false")
	root.run("Permission of range \\[u/, u0\\) is revoked", "role", "revoke-permission", "reader", "u/", "u0")
	root.run("Role reader is revoked", "user", "revoke-role", "ann", "reader")
	root.run("Role reader deleted", "role", "delete", "reader")
	root.run("User ann deleted", "user", "delete", "ann")
}

// syncBuffer is a buffer that one goroutine fills and another reads.
type syncBuffer struct {
	// grown is readable after a write.
	grown chan struct{}

	mu sync.Mutex
	// b is protected by mu.
	b bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.grown <- struct{}{}:
	default:
	}
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
