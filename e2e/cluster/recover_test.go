package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// All nodes are killed under load, and a majority of the directories is gone. From two directories all is recovered that was
// acknowledged; from each alone what it has, and tokens are above all that were given out.
func TestMajorityLost(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		_, err := c.clients[0].UserAdd(c.bound(), "alice", "secret")
		c.must(err)
		l := c.load()
		l.run()
		for _, n := range c.Nodes {
			c.must(n.Kill())
		}
		l.end()
		bin, err := harness.Server()
		c.must(err)
		latchkey := func(args ...string) (string, error) {
			out, err := exec.CommandContext(c.bound(), bin, args...).CombinedOutput()
			return string(out), err
		}
		for i, nodes := range [][]string{{"n3"}, {"n2", "n3"}, {"n1"}, {"n3", "n1"}} {
			output := filepath.Join(c.dir, fmt.Sprint("recovered-", i))
			args := []string{"recover", "--output", output}
			for _, name := range nodes {
				args = append(args, filepath.Join(c.dir, name))
			}
			out, err := latchkey(args...)
			if err != nil {
				t.Fatalf("%q: %v: %s", args, err, out)
			}
			complete := strings.Contains(out, "nothing that was acknowledged is missing")
			if complete != (len(nodes) == 2) || complete == strings.Contains(out, "writes may be missing") {
				t.Errorf("of %q: %s", nodes, out)
			}
			p := &harness.Process{T: t, Dir: output + ".latchkey", Addr: harness.FreeAddr(t)}
			if splits := faults.Splits(shards); splits != "" {
				p.Args = []string{"--initial-splits", splits}
			}
			restore := append([]string{"snapshot", "restore", output, "--data-dir", p.Dir}, p.Args...)
			if out, err := latchkey(append(restore, "--bump-revision", "1000000")...); err == nil || !strings.Contains(out, "1000000000") {
				t.Errorf("a restore with tokens that may be those of the lost nodes: %v: %s", err, out)
			}
			if out, err := latchkey(restore...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			p.Start()
			l.check(p, complete)
			p.Kill()
		}
	})
}

// lockLoad is what clients write and lock, and what they were told.
type lockLoad struct {
	c      *cluster
	cancel context.CancelFunc
	wg     sync.WaitGroup
	keys   []string
	// tried and acked are the last numbers that were put into keys.
	tried, acked []atomic.Int64
	// token is the highest that was given out.
	token atomic.Int64
	rev   atomic.Int64
	locks atomic.Int64
	// lockers are the clients that lock: a lock that is given up is left with the client's own context.
	lockers []*clientv3.Client
}

func (c *cluster) load() *lockLoad {
	l := &lockLoad{c: c}
	for i := range c.clients {
		l.keys = append(l.keys, inShards(c.shards, fmt.Sprint("key", i))...)
	}
	l.tried, l.acked = make([]atomic.Int64, len(l.keys)), make([]atomic.Int64, len(l.keys))
	return l
}

// run starts the load, which goes on when it returns.
func (l *lockLoad) run() {
	l.c.t.Helper()
	ctx, cancel := context.WithCancel(l.c.t.Context())
	l.cancel = cancel
	for i, key := range l.keys {
		client := l.c.clients[i/l.c.shards]
		l.wg.Go(func() { l.put(ctx, client, i, key) })
	}
	for _, n := range l.c.Nodes {
		client, err := faults.Dial(n.Client)
		l.c.must(err)
		l.lockers = append(l.lockers, client)
		l.wg.Go(func() { l.lock(ctx, client) })
	}
	l.c.until("the load to be under way", func(context.Context) error {
		for i := range l.acked {
			if n := l.acked[i].Load(); n < 50 {
				return fmt.Errorf("%d writes of %s", n, l.keys[i])
			}
		}
		if n := l.locks.Load(); n < 20 {
			return fmt.Errorf("%d locks", n)
		}
		return nil
	})
}

func (l *lockLoad) end() {
	l.cancel()
	for _, client := range l.lockers {
		_ = client.Close() // no server answers
	}
	l.wg.Wait()
}

func (l *lockLoad) put(ctx context.Context, client *clientv3.Client, i int, key string) {
	for n := int64(1); ctx.Err() == nil; n++ {
		l.tried[i].Store(n)
		resp, err := client.Put(ctx, key, strconv.FormatInt(n, 10))
		if err != nil {
			return
		}
		l.acked[i].Store(n)
		raise(&l.rev, resp.Header.Revision)
	}
}

// lock takes one lock again and again.
func (l *lockLoad) lock(ctx context.Context, client *clientv3.Client) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(60), concurrency.WithContext(ctx))
	if err != nil {
		return
	}
	m := concurrency.NewMutex(s, "lock")
	for m.Lock(ctx) == nil {
		got, err := client.Get(ctx, m.Key())
		if err != nil || len(got.Kvs) == 0 {
			return
		}
		raise(&l.token, got.Kvs[0].CreateRevision)
		l.locks.Add(1)
		if m.Unlock(ctx) != nil {
			return
		}
	}
}

// raise makes v the highest that it was given.
func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); to > old && !v.CompareAndSwap(old, to); old = v.Load() {
	}
}

// check compares what a server has with what clients were told. complete says that nothing may be missing.
func (l *lockLoad) check(p *harness.Process, complete bool) {
	t := l.c.t
	t.Helper()
	client := p.Client()
	defer client.Close()
	for i, key := range l.keys {
		got, err := client.Get(l.c.bound(), key)
		l.c.must(err)
		n := int64(0)
		if len(got.Kvs) > 0 {
			n, err = strconv.ParseInt(string(got.Kvs[0].Value), 10, 64)
			l.c.must(err)
		}
		if acked, tried := l.acked[i].Load(), l.tried[i].Load(); n > tried || complete && n < acked {
			t.Errorf("%s is %d, tried up to %d, acknowledged up to %d", key, n, tried, acked)
		}
	}
	users, err := client.UserList(l.c.bound())
	if err != nil || len(users.Users) != 1 || users.Users[0] != "alice" {
		t.Errorf("users %v, %v", users, err)
	}
	// Whoever held the lock or waited has a key there, which hangs on a lease.
	locks, err := client.Get(l.c.bound(), "lock/", clientv3.WithPrefix())
	l.c.must(err)
	for _, kv := range locks.Kvs {
		if life, err := client.TimeToLive(l.c.bound(), clientv3.LeaseID(kv.Lease)); err != nil || life.TTL <= 0 {
			t.Errorf("lease %x of %s: %v, %v", kv.Lease, kv.Key, life, err)
		}
	}
	put, err := client.Put(l.c.bound(), "lock/new", "")
	l.c.must(err)
	if token := put.Header.Revision; token <= l.token.Load() || token <= l.rev.Load()+1_000_000_000-1_000_000 {
		t.Errorf("token %d, the old cluster has given out %d and reached %d", token, l.token.Load(), l.rev.Load())
	}
}
