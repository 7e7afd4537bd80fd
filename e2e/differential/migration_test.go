package differential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// TestMigration runs the commands of docs/migration.md: from an etcd to Latchkey by snapshot and by
// make-mirror, and back. What the page says is carried over is, and what it says is lost is lost.
func TestMigration(t *testing.T) {
	hosts := harness.FreeHosts(t)
	address := func(i int) string { return fmt.Sprint(hosts, i, ":2379") }
	etcdAt := func(i int) func(*embed.Config) {
		return func(c *embed.Config) { c.ListenClientUrls = urls(t, "http://"+address(i)) }
	}
	page := harness.OpenPage(t, "migration.md", "10.0.0.", hosts)
	t.Run("by snapshot", func(t *testing.T) { moveBySnapshot(t, page, startEtcd(t, "etcd", etcdAt(9)), address(1)) })
	page.Env = append(page.Env, "ETCDCTL_USER=")
	t.Run("by mirror", func(t *testing.T) {
		etcd := startEtcd(t, "etcd", etcdAt(9))
		p := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: address(1)}
		p.Start()
		defer p.Kill()
		moveByMirror(t, page, etcd, p)
		startEtcd(t, "etcd", etcdAt(8))
		page.Run("back")
		moved, back := p.Client(), harness.Dial(t, address(8))
		defer moved.Close()
		defer back.Close()
		want := mustDo(t, moved, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
		got := mustDo(t, back, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
		sameValues(t, got, want)
	})
	page.AllRun()
}

// moveBySnapshot moves an etcd with users to three nodes.
func moveBySnapshot(t *testing.T, page *harness.Page, etcd *server, first string) {
	t.Helper()
	was, _ := savedOfEtcd(t, etcd, 600) // nothing ends before it has been compared
	page.Env = append(page.Env, "ETCDCTL_USER=root:secret")
	if out := page.Run("save"); !strings.Contains(out, fmt.Sprint(" ", was.all.Header.Revision, " ")) {
		t.Errorf("the snapshot is of revision %d: %s", was.all.Header.Revision, out)
	}
	var stops []func()
	for _, block := range []string{"restore", "start"} {
		for i := 1; i <= 3; i++ {
			node := []string{"name=n1", fmt.Sprint("name=n", i), "host=10.0.0.1", fmt.Sprint("host=10.0.0.", i)}
			if block == "restore" {
				page.Run(block, node...)
			} else {
				stops = append(stops, page.Start(block, node...))
			}
		}
	}
	page.Run("compare")
	root := dialAs(t, first, "root", "secret")
	defer root.Close()
	if next := token(t, root); next <= was.token {
		t.Errorf("token %d after %d", next, was.token)
	}
	if l, err := root.KeepAliveOnce(t.Context(), longLease); err != nil || l.TTL != 600 {
		t.Errorf("the lease: %v, %v", l, err)
	}
	for _, stop := range stops {
		stop()
	}
}

// moveByMirror moves an etcd's keys to a node.
func moveByMirror(t *testing.T, page *harness.Page, etcd *server, p *harness.Process) {
	t.Helper()
	old := harness.Dial(t, etcd.address)
	defer old.Close()
	lease, err := old.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"a": "1", "dir/b": "2", "\x00\xff": "binary", "z": ""} {
		mustDo(t, old, clientv3.OpPut(key, value))
	}
	mustDo(t, old, clientv3.OpPut("held", "by a session", clientv3.WithLease(lease.ID)))
	for range 20 {
		mustDo(t, old, clientv3.OpPut("a", "again"))
	}
	page.Run("mirror")
	moved := p.Client()
	defer moved.Close()
	want := mustDo(t, old, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
	got := mustDo(t, moved, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
	sameValues(t, got, want)
	for _, kv := range got {
		if kv.Lease != 0 || kv.Version != 1 {
			t.Errorf("%q has lease %d and version %d; docs/migration.md says that neither is carried over", kv.Key, kv.Lease, kv.Version)
		}
	}
	if a := mustDo(t, moved, clientv3.OpGet("a")).Get().Kvs[0]; a.ModRevision >= mustDo(t, old, clientv3.OpGet("a")).Get().Kvs[0].ModRevision {
		t.Errorf("revision %d is not below etcd's; docs/migration.md says that it is", a.ModRevision)
	}
}

func sameValues(t *testing.T, got, want []*mvccpb.KeyValue) {
	t.Helper()
	if len(got) != len(want) || len(got) != 5 {
		t.Fatalf("%d keys were copied of %d", len(got), len(want))
	}
	for i, kv := range got {
		if string(kv.Key) != string(want[i].Key) || string(kv.Value) != string(want[i].Value) {
			t.Errorf("%q = %q, want %q = %q", kv.Key, kv.Value, want[i].Key, want[i].Value)
		}
	}
}

// Latchkey started on the data directory of an etcd refuses, with a flag for the directory and, in etcd's
// working directory, without.
func TestEtcdsDirs(t *testing.T) {
	var dir string
	startEtcd(t, "etcd", func(c *embed.Config) {
		dir = filepath.Join(c.Dir, "n1.etcd")
		c.Dir = dir
	})
	refusesDir(t, dir, "--name", "n1")
	refusesDir(t, dir, "--data-dir", dir)
}

// refusesDir checks that a start in the folder around an etcd's directory is refused and
// leaves nothing.
func refusesDir(t *testing.T, dir string, args ...string) {
	t.Helper()
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + harness.FreeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(args, "--listen-client-urls", url, "--advertise-client-urls", url)...)
	cmd.Dir = filepath.Dir(dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("started on etcd's directory: %v: %s", err, out)
	}
	for _, want := range []string{"data directory is etcd's", "make-mirror", "docs/migration.md"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the refusal does not say %q: %s", want, out)
		}
	}
	for _, place := range []string{dir, filepath.Dir(dir)} {
		left, err := os.ReadDir(place)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			if e.Name() != "member" && e.Name() != filepath.Base(dir) {
				t.Errorf("the refused start left %s in %s", e.Name(), place)
			}
		}
	}
}

func mustDo(t *testing.T, c *clientv3.Client, op clientv3.Op) clientv3.OpResponse {
	t.Helper()
	r, err := c.Do(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
