//go:build upgrade

package upgrade

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// An earlier version, which knows nothing of backups, does not start on a directory whose backup is
// still to be loaded: it would begin empty. This version then has what was restored.
func TestEarlierVersionRefusesWhatIsToLoad(t *testing.T) {
	before := earlier(t)
	p := harness.NewProcess(t)
	c := p.Client()
	put, err := c.Put(t.Context(), "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	tools, err := harness.Etcdctl()
	if err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	run := func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
		defer cancel()
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		return string(out), err
	}
	if out, err := run(filepath.Join(tools, "etcdctl"), "--endpoints", p.Addr, "snapshot", "save", backup); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_ = c.Close()
	p.Kill()
	now, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	to := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: harness.FreeAddr(t)}
	if out, err := run(now, "snapshot", "restore", backup, "--data-dir", to.Dir); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	identity := filepath.Join(to.Dir, "node.json")
	made, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + to.Addr
	out, err := run(before, "--data-dir", to.Dir, "--listen-client-urls", url, "--advertise-client-urls", url)
	if err == nil || !strings.Contains(out, "unknown format") || !strings.Contains(out, "a later version") {
		t.Errorf("the earlier version: %v, %s", err, out)
	}
	if left, err := os.ReadFile(identity); err != nil || string(left) != string(made) {
		t.Errorf("the earlier version left %s, %v, of %s", left, err, made)
	}
	to.Start()
	defer to.Kill()
	restored := to.Client()
	defer restored.Close()
	got, err := restored.Get(t.Context(), "k")
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != put.Header.Revision {
		t.Errorf("%v, %v", got, err)
	}
}
