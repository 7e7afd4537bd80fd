package clients

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// lockToken takes a lock, lets it go and returns its token.
func lockToken(t *testing.T, c *clientv3.Client) int64 {
	t.Helper()
	session, err := concurrency.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "m/lock")
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), mutex.Key())
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got.Kvs[0].CreateRevision
}

// What etcdctl has saved is restored into a new server: with the revisions of keys and the users,
// later tokens, and etcd's error for watches of what was before.
func TestRestoreWhatEtcdctlSaved(t *testing.T) {
	t.Parallel()
	for _, splits := range []string{"", "k,p", "c,f,i,l,o,r,u"} {
		t.Run("splits "+splits, func(t *testing.T) { restoreWhatEtcdctlSaved(t, []string{harness.SplitsFlag, splits}) })
	}
}

func restoreWhatEtcdctlSaved(t *testing.T, splits []string) {
	t.Helper()
	p := harness.NewProcess(t, splits...)
	c := p.Client()
	defer c.Close()
	ctl := newCtl(t, p)
	ctl.run("OK", "put", "k", "v1")
	ctl.run("OK", "put", "k", "v2")
	ctl.run("Role root created", "role", "add", "root")
	ctl.run("User root created", "user", "add", "root:secret")
	ctl.run("is granted", "user", "grant-role", "root", "root")
	token := lockToken(t, c)
	before, err := c.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctl.run("Authentication Enabled", "auth", "enable")
	ctl.env = append(ctl.env, "ETCDCTL_USER=root:secret")
	path := filepath.Join(t.TempDir(), "backup")
	ctl.run("Snapshot saved", "snapshot", "save", path)
	p.Kill()

	server, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	to := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: harness.FreeAddr(t), Args: splits}
	restored := func() (string, error) {
		args := append([]string{"snapshot", "restore", path, "--data-dir", to.Dir, "--bump-revision=1000", "--mark-compacted"}, splits...)
		out, err := exec.Command(server, args...).CombinedOutput()
		return string(out), err
	}
	if out, err := restored(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := restored(); err == nil {
		t.Errorf("restored over what is there: %s", out)
	}
	to.Start()
	defer to.Kill()
	if _, err := to.Client().Get(t.Context(), "k"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("a read of nobody: %v", err)
	}
	now, err := clientv3.New(clientv3.Config{Endpoints: []string{to.Addr}, Username: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	after, err := now.Get(t.Context(), "k")
	if err != nil || len(after.Kvs) != 1 || after.Kvs[0].String() != before.Kvs[0].String() || after.Header.Revision < before.Header.Revision+1000 {
		t.Errorf("%v, %v, before %v", after, err, before)
	}
	if next := lockToken(t, now); next < token+1000 {
		t.Errorf("token %d after %d", next, token)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	told := false
	for w := range now.Watch(ctx, "k", clientv3.WithRev(before.Header.Revision)) {
		told = true
		if !errors.Is(w.Err(), rpctypes.ErrCompacted) || w.CompactRevision != after.Header.Revision {
			t.Errorf("watch: %v, compacted at %d, want %d", w.Err(), w.CompactRevision, after.Header.Revision)
		}
	}
	if !told {
		t.Error("a watch of what was before is not told that it is compacted")
	}
}
