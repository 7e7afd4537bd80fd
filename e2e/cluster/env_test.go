package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// cluster is three nodes and a client of each.
type cluster struct {
	*faults.Cluster
	t       testing.TB
	gear    *faults.Gear
	shards  int
	clients []*clientv3.Client
	// dir has the data directories, by the nodes' names, where the nodes need no disks of their own.
	dir string
}

// newCluster starts three nodes with so many data shards, cut in the letters, and with
// what some kinds of faults need, which the machine must allow.
func newCluster(tb testing.TB, shards int, kinds []string, args ...string) *cluster {
	tb.Helper()
	c := layCluster(tb, shards, kinds, args...)
	c.must(c.Start(c.bound()))
	return c
}

// layCluster is newCluster that starts no node.
func layCluster(tb testing.TB, shards int, kinds []string, args ...string) *cluster {
	tb.Helper()
	o := faults.Options{Nodes: 3, Args: args}
	if slices.Contains(kinds, "grow") {
		o.Later = 1
	}
	return layNodes(tb, shards, kinds, o)
}

// layNodes is layCluster of any number of nodes.
func layNodes(tb testing.TB, shards int, kinds []string, o faults.Options) *cluster {
	tb.Helper()
	bin, err := harness.Server()
	if err != nil {
		tb.Fatal(err)
	}
	c := &cluster{t: tb, shards: shards}
	c.dir = tb.TempDir()
	o.Binary, o.Dir = bin, c.dir
	if splits := faults.Splits(shards); splits != "" {
		o.Args = append(o.Args, "--initial-splits", splits)
	}
	if c.gear, err = faults.NewGear(kinds, o.Nodes+o.Later, o.Dir); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.must(c.gear.Close()) })
	o.Network, o.Disks = c.gear.Network, c.gear.Disks
	if c.Cluster, err = faults.New(o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, n := range slices.Concat(c.Nodes, c.Later) {
				tb.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		c.must(c.Close())
	})
	var done func() error
	c.clients, done, err = faults.DialEach(c.Cluster)
	c.must(err)
	tb.Cleanup(func() { c.must(done()) })
	return c
}

// promptly is the time in which what should happen at once must have happened, on a
// machine that is busy.
const promptly = 10 * time.Second

// patience bounds every wait for what must happen.
const patience = 2 * time.Minute

// bound returns a context for one step of a test.
func (c *cluster) bound() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	c.t.Cleanup(cancel)
	return ctx
}

// until calls fn until it succeeds.
func (c *cluster) until(what string, fn func(ctx context.Context) error) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		err := fn(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
		pause(c.t.Context(), 20*time.Millisecond)
	}
}

// errNoLeader is what tests wait out.
var errNoLeader = errors.New("no node leads the system shard")

// moveLeaders has the node that leads the system shard hand that, and what data shards
// it leads, to the next node.
func (c *cluster) moveLeaders(ctx context.Context) error {
	ids, leader := make([]uint64, len(c.Nodes)), -1
	for i, client := range c.clients {
		s, err := client.Status(ctx, c.Nodes[i].Client)
		if err != nil {
			return err
		}
		ids[i] = s.Header.MemberId
		if s.Leader == ids[i] {
			leader = i
		}
	}
	if leader < 0 {
		return errNoLeader
	}
	_, err := c.clients[leader].MoveLeader(ctx, ids[(leader+1)%len(ids)])
	return err
}

// count counts the keys of a prefix.
func (c *cluster) count(prefix string) (n int64) {
	c.t.Helper()
	node := 0
	c.until("count "+prefix, func(ctx context.Context) error {
		node++ // another may be down
		r, err := c.clients[node%3].Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil {
			n = r.Count
		}
		return err
	})
	return n
}

// gone waits until nothing is left of the keys that some shards have under a name.
func (c *cluster) gone(name string, limit time.Duration) {
	c.t.Helper()
	for deadline := time.Now().Add(limit); ; {
		left := int64(0)
		for _, prefix := range inShards(c.shards, name) {
			left += c.count(prefix)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%d keys of %s are left after %v", left, name, limit)
		}
		pause(c.t.Context(), 50*time.Millisecond)
	}
}

// unavailable reports whether an error is one that clients meet by trying again.
func unavailable(err error) bool {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// require skips a test of faults that the machine does not allow.
func require(t *testing.T, kinds ...string) []string {
	t.Helper()
	_, left, err := faults.Choose(kinds)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Skip(strings.Join(left, ", "))
	}
	return kinds
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// all returns a client of all nodes; the test's end closes it.
func (c *cluster) all() *clientv3.Client {
	c.t.Helper()
	all, err := faults.Dial(c.Endpoints()...)
	c.must(err)
	c.t.Cleanup(func() { _ = all.Close() })
	return all
}

func (c *cluster) healthy() {
	c.t.Helper()
	c.must(c.AwaitHealthy(c.bound()))
}

// leader returns a node that leads data shards, the most of them.
func (c *cluster) leader() int {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		best, most := -1, 0
		for i := range c.Nodes {
			if n, err := c.Nodes[i].ShardsLed(c.t.Context()); err == nil && n > most {
				best, most = i, n
			}
		}
		if best >= 0 {
			return best
		}
	}
	c.t.Fatal("no node leads a data shard")
	return -1
}

// kept fails the test for each promise that a report says was broken.
func kept(t *testing.T, r *faults.Report) {
	t.Helper()
	for _, v := range r.Violations() {
		t.Error(v)
	}
}

// suffered fails the test unless clients did something while something was broken: without
// that it has shown nothing.
func suffered(t *testing.T, r *faults.Report) {
	t.Helper()
	const least = 20
	if n := r.Operations.Load(); n < least {
		t.Errorf("only %d operations; the run shows nothing", n)
	}
	if len(r.Faults()) == 0 {
		t.Error("nothing was broken; the run shows nothing")
	}
}

// onShards runs a test with one data shard and with four.
func onShards(t *testing.T, fn func(t *testing.T, shards int)) {
	t.Helper()
	t.Parallel()
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			t.Parallel() // they wait more than they work
			fn(t, shards)
		})
	}
}

// inShards returns a key for each of up to four shards, of the same name.
func inShards(shards int, name string) (keys []string) {
	for i := range shards {
		keys = append(keys, string(rune('a'+i*26/shards))+"/"+name)
	}
	return keys
}
