package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
}

// newCluster starts three nodes with so many data shards, cut in the letters, and with
// what some kinds of faults need, which the machine must allow.
func newCluster(tb testing.TB, shards int, kinds []string, args ...string) *cluster {
	tb.Helper()
	bin, err := harness.Server()
	if err != nil {
		tb.Fatal(err)
	}
	c := &cluster{t: tb, shards: shards}
	o := faults.Options{Binary: bin, Nodes: 3, Dir: tb.TempDir(), Args: args}
	if splits := faults.Splits(shards); splits != "" {
		o.Args = append(o.Args, "--initial-splits", splits)
	}
	if c.gear, err = faults.NewGear(kinds, o.Nodes, o.Dir); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.must(c.gear.Close()) })
	o.Network, o.Disks = c.gear.Network, c.gear.Disks
	if c.Cluster, err = faults.New(o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, n := range c.Nodes {
				tb.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		c.must(c.Close())
	})
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	c.must(c.Start(ctx))
	var done func() error
	c.clients, done, err = faults.DialEach(c.Cluster)
	c.must(err)
	tb.Cleanup(func() { c.must(done()) })
	return c
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
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	c.must(c.AwaitHealthy(ctx))
}

// leader returns a node that leads data shards, the most of them.
func (c *cluster) leader() int {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
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

// onShards runs a test with one data shard and with four.
func onShards(t *testing.T, fn func(t *testing.T, shards int)) {
	t.Helper()
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
