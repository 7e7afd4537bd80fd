package differential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Leases of the etcd that is restored, and the time to live of the short ones in seconds.
const (
	longLease  = clientv3.LeaseID(7001)
	deadLease  = clientv3.LeaseID(7002)
	keptLease  = clientv3.LeaseID(7003)
	shortTTL   = 10
	mutexName  = "m/lock"
	restoreCut = "b,m,t"
)

// What etcdctl has saved of an etcd is restored, into a node and into three, with one shard and
// with four: each key with all its numbers, leases that end and leases that are kept, users with their
// passwords and rights, and tokens that go on growing.
func TestRestoreSnapshotOfEtcd(t *testing.T) {
	etcd := startEtcd(t, "etcd")
	was, path := savedOfEtcd(t, etcd, shortTTL)
	for _, nodes := range []int{1, 3} {
		for _, splits := range []string{"", restoreCut} {
			t.Run(fmt.Sprintf("%d nodes, splits %s", nodes, splits), func(t *testing.T) {
				t.Parallel() // most of the time it waits
				cluster := restored(t, nodes, path, harness.SplitsFlag, splits, "--bump-revision", "1000")
				// The short leases begin again with the nodes, and one that starts late would not find their keys.
				stop := keepAlive(t, cluster[0].Addr, deadLease, keptLease)
				for _, p := range cluster {
					sameAsWas(t, p.Addr, was)
				}
				stop()
				goesOn(t, cluster[0].Addr, was)
			})
		}
	}
}

// whole is what an etcd held.
type whole struct {
	all   *clientv3.GetResponse
	users map[string]*clientv3.AuthUserGetResponse
	role  *clientv3.AuthRoleGetResponse
	auth  uint64
	token int64
}

// savedOfEtcd fills an etcd, saves a snapshot of it by etcdctl, and returns what it held and the
// file. ttl is that of the leases that nobody keeps there.
func savedOfEtcd(t *testing.T, etcd *server, ttl int64) (*whole, string) {
	t.Helper()
	c := harness.Dial(t, etcd.address)
	defer c.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	grant := func(id clientv3.LeaseID, ttl int64) {
		_, err := etcd.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: ttl})
		must(err)
	}
	grant(longLease, 600)
	for i := range 200 {
		key := fmt.Sprintf("%c/%d", 'a'+i%26, i%50)
		mustDo(t, c, clientv3.OpPut(key, strings.Repeat("x", i*7), clientv3.WithLease(longLease*clientv3.LeaseID(i%2))))
		if i%9 == 0 {
			mustDo(t, c, clientv3.OpDelete(fmt.Sprintf("%c/", 'a'+i%26), clientv3.WithPrefix()))
		}
	}
	mustDo(t, c, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("z/1", "of a"), clientv3.OpPut("a/1", "transaction"), clientv3.OpDelete("c/28")}, nil))
	mustDo(t, c, clientv3.OpPut("\x00\xff", "binary"))
	rev := mustDo(t, c, clientv3.OpPut("n", "")).Put().Header.Revision
	_, err := c.Compact(ctx, rev-60)
	must(err)
	was := &whole{users: make(map[string]*clientv3.AuthUserGetResponse), token: token(t, c)}
	for _, err := range []error{
		second(c.RoleAdd(ctx, "reader")),
		second(c.RoleGrantPermission(ctx, "reader", "a", "c", clientv3.PermissionType(clientv3.PermReadWrite))),
		second(c.RoleGrantPermission(ctx, "reader", "n", "", clientv3.PermissionType(clientv3.PermRead))),
		second(c.UserAdd(ctx, "root", "secret")),
		second(c.UserGrantRole(ctx, "root", "root")),
		second(c.UserAdd(ctx, "alice", "wonder")),
		second(c.UserGrantRole(ctx, "alice", "reader")),
		second(c.UserAddWithOptions(ctx, "bob", "", &clientv3.UserAddOptions{NoPassword: true})),
	} {
		must(err)
	}
	grant(deadLease, ttl)
	grant(keptLease, ttl)
	mustDo(t, c, clientv3.OpPut("d/dead", "", clientv3.WithLease(deadLease)))
	mustDo(t, c, clientv3.OpPut("y/dead", "", clientv3.WithLease(deadLease)))
	mustDo(t, c, clientv3.OpPut("k/kept", "", clientv3.WithLease(keptLease)))
	// The newest change is of a key that is gone.
	mustDo(t, c, clientv3.OpPut("last", ""))
	mustDo(t, c, clientv3.OpDelete("last"))
	must(second(c.AuthEnable(ctx)))

	root := dialAs(t, etcd.address, "root", "secret")
	defer root.Close()
	was.all, err = root.Get(ctx, "\x00", clientv3.WithFromKey())
	must(err)
	for _, name := range []string{"root", "alice", "bob"} {
		was.users[name], err = root.UserGet(ctx, name)
		must(err)
	}
	was.role, err = root.RoleGet(ctx, "reader")
	must(err)
	status, err := root.AuthStatus(ctx)
	must(err)
	was.auth = status.AuthRevision
	path := filepath.Join(t.TempDir(), "etcd.db")
	tools, err := harness.Etcdctl()
	must(err)
	out, err := exec.Command(filepath.Join(tools, "etcdctl"), "--endpoints", etcd.address, "--user", "root:secret", "snapshot", "save", path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return was, path
}

// second is the error of two results.
func second[A any](_ A, err error) error { return err }

func dialAs(t *testing.T, address, name, password string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Username: name, Password: password, DialTimeout: harness.LongWait})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// token takes the lock and lets it go.
func token(t *testing.T, c *clientv3.Client) int64 {
	t.Helper()
	s, err := concurrency.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := concurrency.NewMutex(s, mutexName)
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), m.Key())
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got.Kvs[0].CreateRevision
}

// restored restores a file into so many nodes, with further flags, and starts them.
func restored(t *testing.T, nodes int, path string, flags ...string) []*harness.Process {
	t.Helper()
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	var cluster []*harness.Process
	var urls, names []string
	for i := range nodes {
		url := "http://" + harness.FreeAddr(t)
		urls, names = append(urls, url), append(names, fmt.Sprintf("n%d=%s", i, url))
	}
	for i, url := range urls {
		who := []string{"--name", fmt.Sprintf("n%d", i), "--initial-cluster", strings.Join(names, ","), "--initial-advertise-peer-urls", url}
		p := &harness.Process{
			T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: harness.FreeAddr(t), Args: append([]string{"--listen-peer-urls", url, harness.SplitsFlag, ""}, who...),
		}
		out, err := exec.Command(bin, append(append([]string{"snapshot", "restore", path, "--data-dir", p.Dir}, who...), flags...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		p.Launch()
		t.Cleanup(p.Kill)
		cluster = append(cluster, p)
	}
	return cluster
}

// keepAlive keeps leases until stop, or the end of the test, whichever is first.
func keepAlive(t *testing.T, address string, ids ...clientv3.LeaseID) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	root := dialAs(t, address, "root", "secret")
	t.Cleanup(func() { cancel(); _ = root.Close() })
	for _, id := range ids {
		kept, err := root.KeepAlive(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range kept { // until ctx ends
			}
		}()
	}
	return cancel
}

// sameAsWas compares what a node has with what the etcd held.
func sameAsWas(t *testing.T, address string, was *whole) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	root := dialAs(t, address, "root", "secret")
	defer root.Close()
	all, err := root.Get(ctx, "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(was.all.Kvs, all.Kvs, protocmp.Transform()); d != "" || len(all.Kvs) < 50 {
		t.Errorf("%d keys: %s", len(all.Kvs), d)
	}
	if want := was.all.Header.Revision + 1001; all.Header.Revision != want {
		t.Errorf("revision %d, want %d", all.Header.Revision, want)
	}
	for name, want := range was.users {
		got, err := root.UserGet(ctx, name)
		if err != nil || !cmp.Equal(got.Roles, want.Roles) {
			t.Errorf("user %s: %v, %v, want %v", name, got, err, want)
		}
	}
	role, err := root.RoleGet(ctx, "reader")
	if err != nil || cmp.Diff(role.Perm, was.role.Perm, protocmp.Transform()) != "" || len(role.Perm) != 2 {
		t.Errorf("role: %v, %v, want %v", role, err, was.role)
	}
	if status, err := root.AuthStatus(ctx); err != nil || !status.Enabled || status.AuthRevision != was.auth {
		t.Errorf("%v, %v, want revision %d", status, err, was.auth)
	}
}

// goesOn uses what was restored.
func goesOn(t *testing.T, address string, was *whole) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	root := dialAs(t, address, "root", "secret")
	defer root.Close()
	// Kept for longer than the one that is not, which ends by itself.
	keepAlive(t, address, keptLease)
	if l, err := root.KeepAliveOnce(ctx, longLease); err != nil || l.TTL != 600 {
		t.Errorf("the long lease: %v, %v", l, err)
	}
	if next := token(t, root); next <= was.token+1000 {
		t.Errorf("token %d after %d", next, was.token)
	}
	alice := dialAs(t, address, "alice", "wonder")
	defer alice.Close()
	put, err := alice.Put(ctx, "a/of alice", "")
	if err != nil || put.Header.Revision <= was.all.Header.Revision+1000 {
		t.Errorf("%v, %v", put, err)
	}
	if _, err := alice.Put(ctx, "n", ""); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a write without the right: %v", err)
	}
	if _, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Username: "alice", Password: "other", DialTimeout: time.Second}); !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Errorf("another password: %v", err)
	}
	if _, err := root.Get(ctx, "n", clientv3.WithRev(was.all.Header.Revision)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read of what was: %v", err)
	}
	for w := range root.Watch(ctx, "y/dead", clientv3.WithRev(was.all.Header.Revision+1)) {
		if err := w.Err(); err != nil {
			t.Error(err)
		}
		if len(w.Events) > 0 {
			break
		}
	}
	for key, want := range map[string]int64{"d/dead": 0, "y/dead": 0, "k/kept": 1} {
		if got, err := root.Get(ctx, key); err != nil || got.Count != want {
			t.Errorf("%s when the short lease is over: %v, %v", key, got, err)
		}
	}
	if _, err := root.Revoke(ctx, longLease); err != nil {
		t.Error(err)
	}
	left, err := root.Get(ctx, "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range left.Kvs {
		if kv.Lease == int64(longLease) {
			t.Errorf("%s is there after its lease", kv.Key)
		}
	}
}

// The database of an etcd that was stopped is restored without a SHA-256, if that is asked for, and
// is not while it is in use.
func TestRestoreCopiedDatabase(t *testing.T) {
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "etcd")
	db := filepath.Join(dir, "member", "snap", "db")
	refused := func(t *testing.T, says string, args ...string) {
		t.Helper()
		out, err := exec.Command(bin, append([]string{"snapshot", "restore", db, "--data-dir", filepath.Join(t.TempDir(), "data")}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%q: %v, %s, want %q", args, err, out, says)
		}
	}
	t.Run("in use", func(t *testing.T) {
		etcd := startEtcd(t, "etcd", func(c *embed.Config) { c.Dir = dir })
		c := harness.Dial(t, etcd.address)
		defer c.Close()
		mustDo(t, c, clientv3.OpPut("copied", "value"))
		refused(t, "stopped", "--skip-hash-check")
	})
	refused(t, "--skip-hash-check")
	before, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	p := restored(t, 1, db, "--skip-hash-check")[0]
	c := p.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	if got, err := c.Get(ctx, "copied"); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Errorf("%v, %v", got, err)
	}
	if after, err := os.ReadFile(db); err != nil || string(after) != string(before) {
		t.Errorf("the database was changed: %v", err)
	}
}
