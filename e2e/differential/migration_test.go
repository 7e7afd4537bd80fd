package differential

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// migrationScript returns the commands of docs/migration.md for two addresses.
func migrationScript(t *testing.T, from, to string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?ms)^   ```sh\n(.*?)^   ```").FindSubmatch(doc)
	if m == nil || !strings.Contains(string(m[1]), "old=127.0.0.1:2379\n") || !strings.Contains(string(m[1]), "new=127.0.0.1:12379\n") {
		t.Fatalf("docs/migration.md has no script with two addresses: %s", m)
	}
	return strings.NewReplacer("127.0.0.1:2379", from, "127.0.0.1:12379", to).Replace(string(m[1]))
}

// The way from etcd to Latchkey that docs/migration.md shows carries keys and values, and
// what it says is lost is lost. Started on etcd's directory instead, Latchkey refuses.
func TestMoveFromEtcd(t *testing.T) {
	tools, err := harness.Etcdctl()
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	etcd := startEtcd(t, "etcd", func(c *embed.Config) {
		dir = filepath.Join(c.Dir, "data")
		c.Dir = dir
	})
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

	p := harness.NewProcess(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.LongWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", migrationScript(t, etcd.address, p.Addr))
	cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v: %s", err, out)
	}
	moved := p.Client()
	defer moved.Close()
	want := mustDo(t, old, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
	got := mustDo(t, moved, clientv3.OpGet("\x00", clientv3.WithFromKey())).Get().Kvs
	if len(got) != len(want) || len(got) != 5 {
		t.Fatalf("%d keys were copied, etcd has %d", len(got), len(want))
	}
	for i, kv := range got {
		if string(kv.Key) != string(want[i].Key) || string(kv.Value) != string(want[i].Value) {
			t.Errorf("%q = %q, in etcd %q = %q", kv.Key, kv.Value, want[i].Key, want[i].Value)
		}
		if kv.Lease != 0 || kv.Version != 1 {
			t.Errorf("%q has lease %d and version %d; docs/migration.md says that neither is carried over", kv.Key, kv.Lease, kv.Version)
		}
	}
	if a := mustDo(t, moved, clientv3.OpGet("a")).Get().Kvs[0]; a.ModRevision >= mustDo(t, old, clientv3.OpGet("a")).Get().Kvs[0].ModRevision {
		t.Errorf("revision %d is not below etcd's; docs/migration.md says that it is", a.ModRevision)
	}
	refusesDir(t, dir, "--data-dir", dir)
}

// Latchkey started by etcd's script in etcd's working directory refuses, without a flag
// for the directory.
func TestEtcdsDefaultDir(t *testing.T) {
	var dir string
	startEtcd(t, "etcd", func(c *embed.Config) {
		dir = filepath.Join(c.Dir, "n1.etcd")
		c.Dir = dir
	})
	refusesDir(t, dir, "--name", "n1")
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
