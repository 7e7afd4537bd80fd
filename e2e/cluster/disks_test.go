package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A leader whose disk is stuck acknowledges nothing and is replaced, in the shards that have
// nothing to write too. No lease that is renewed through other nodes ends, and every other
// one does.
func TestStuckDisk(t *testing.T) {
	kinds := require(t, "stuck-disk")
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		const ttl = 5
		stuck := time.Duration(harness.Sized(8, 30)) * time.Second
		c := newCluster(t, shards, kinds)
		leader := c.leader()
		if shards > 1 { // then all nodes lead data shards, which take numbers of this one
			leader = c.systemLeader()
		}
		mine, other := c.clients[(leader+1)%3], c.clients[(leader+2)%3]
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		grant := func(name string) clientv3.LeaseID {
			t.Helper()
			g, err := mine.Grant(ctx, ttl)
			c.must(err)
			for _, key := range inShards(shards, name) {
				_, err := other.Put(ctx, key, "", clientv3.WithLease(g.ID))
				c.must(err)
			}
			return g.ID
		}
		var renewing sync.WaitGroup
		for i := range 6 {
			id := grant(fmt.Sprintf("kept/%d", i))
			renewing.Go(func() { renewThrough(ctx, t, id, mine, other) })
		}
		for i := range 6 {
			grant(fmt.Sprintf("left/%d", i))
		}
		c.must(c.gear.Disks.Freeze(leader))
		begin := time.Now()
		for _, key := range inShards(shards, "stuck") {
			writeSoon(ctx, t, other, key)
			try, stop := context.WithTimeout(ctx, time.Second)
			_, err := c.clients[leader].Put(try, key, "")
			stop()
			if err == nil {
				t.Errorf("the node with the stuck disk acknowledged a write of %s", key)
			}
		}
		t.Logf("after %v others write to all shards", time.Since(begin))
		pause(ctx, stuck-time.Since(begin))
		c.must(c.gear.Disks.Thaw(leader))
		c.healthy()
		awaitNone(ctx, t, other, inShards(shards, "left/"), begin.Add(stuck+(ttl+15)*time.Second))
		pause(ctx, ttl*time.Second)
		cancel()
		renewing.Wait()
		for _, prefix := range inShards(shards, "kept/") {
			r, err := other.Get(t.Context(), prefix, clientv3.WithPrefix())
			c.must(err)
			if r.Count != 6 {
				t.Errorf("%d keys of %s are left of 6", r.Count, prefix)
			}
		}
	})
}

// systemLeader returns the node that leads the system shard.
func (c *cluster) systemLeader() (at int) {
	c.t.Helper()
	c.until("a leader", func(ctx context.Context) error {
		for i, client := range c.clients {
			s, err := client.Status(ctx, c.Nodes[i].Client)
			if err != nil {
				return err
			}
			if s.Leader == s.Header.MemberId {
				at = i
				return nil
			}
		}
		return errNoLeader
	})
	return at
}

// renewThrough renews a lease every second, through one client or another.
func renewThrough(ctx context.Context, t *testing.T, id clientv3.LeaseID, clients ...*clientv3.Client) {
	t.Helper()
	for i := 0; ctx.Err() == nil; i++ {
		try, stop := context.WithTimeout(ctx, 2*time.Second)
		_, err := clients[i%len(clients)].KeepAliveOnce(try, id)
		stop()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.Errorf("lease %x is gone", id)
			return
		}
		pause(ctx, time.Second)
	}
}

// writeSoon writes a key within a fail-over's time.
func writeSoon(ctx context.Context, t *testing.T, client *clientv3.Client, key string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		try, stop := context.WithTimeout(ctx, 3*time.Second)
		_, err := client.Put(try, key, "")
		stop()
		if err == nil {
			return
		}
		disarm(ctx, client, err)
		if time.Now().After(deadline) {
			t.Fatalf("put %s: %v", key, err)
		}
	}
}

// disarm lets clients write again if err says that a disk is nearly full. The alarm may
// come before the log fails, and is raised again while it is not heeded.
func disarm(ctx context.Context, client *clientv3.Client, err error) {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		_, _ = client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // the next refusal tries again
	}
}

// awaitNone waits until no key has one of some prefixes.
func awaitNone(ctx context.Context, t *testing.T, client *clientv3.Client, prefixes []string, deadline time.Time) {
	t.Helper()
	for _, prefix := range prefixes {
		for {
			r, err := client.Get(ctx, prefix, clientv3.WithPrefix())
			if err == nil && r.Count == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v keys of %s are there, %v", r, prefix, err)
			}
			pause(ctx, 100*time.Millisecond)
		}
	}
}

// A node whose fsyncs fail, or whose disk is full, ends with a line that says what to do,
// and acknowledges nothing after. The others go on, and it catches up when its disk is well.
func TestFailingDisk(t *testing.T) {
	kinds := require(t, "failing-fsync", "full-disk")
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, kinds)
		report := &faults.Report{}
		chains := faults.NewChains(report, 6, c.clients)
		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		load.Go(func() { chains.Run(ctx) })
		for i, way := range []struct {
			text       string
			begin, end func(node int) error
		}{
			{
				"input/output error",
				func(node int) error { c.gear.Disks.FailSyncs(node, true); return nil },
				func(node int) error { c.gear.Disks.FailSyncs(node, false); return nil },
			},
			{
				"no space left on device",
				func(node int) error { return c.gear.Disks.Fill(node, 0) },
				c.gear.Disks.Free,
			},
		} {
			node := c.leader()
			c.must(way.begin(node))
			filled := c.fillLogs(node)
			checkEnd(t, c.Nodes[node], way.text)
			filled()
			for _, key := range inShards(shards, fmt.Sprintf("failing/%d", i)) {
				writeSoon(t.Context(), t, c.clients[(node+1)%3], key)
			}
			c.must(way.end(node))
			c.must(c.Nodes[node].Launch())
			c.healthy()
		}
		cancel()
		load.Wait()
		chains.Check(t.Context())
		kept(t, report)
	})
}

// fillLogs writes to all shards through the nodes but one, until it is ended.
func (c *cluster) fillLogs(but int) (end func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	value := strings.Repeat("x", 64<<10)
	var wg sync.WaitGroup
	for i, client := range c.clients {
		if i == but {
			continue
		}
		for _, key := range inShards(c.shards, fmt.Sprintf("fill/%d", i)) {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := client.Put(ctx, key, value); err != nil {
						disarm(ctx, client, err)
						pause(ctx, 10*time.Millisecond)
					}
				}
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// checkEnd sees to it that a node ends by itself, with 1 and one line.
func checkEnd(t *testing.T, n *faults.Node, text string) {
	t.Helper()
	ended, how := n.Ended(30 * time.Second)
	if !ended {
		t.Fatalf("%s goes on; %q was expected\n%s", n.Name, text, n.Log())
	}
	var exit *exec.ExitError
	if !errors.As(how, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%s ended with %v, 1 was expected", n.Name, how)
	}
	lines := strings.Split(n.Log(), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "latchkey: ") || !strings.Contains(last, text) || !strings.Contains(last, "start the node again") {
		t.Errorf("%s ended with the words %q; %q and what to do were expected", n.Name, last, text)
	}
}
