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

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// writeSoon writes a key within a fail-over's time.
func writeSoon(ctx context.Context, t *testing.T, client *clientv3.Client, key string) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; {
		try, stop := context.WithTimeout(ctx, 3*time.Second)
		_, err := client.Put(try, key, "")
		stop()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("put %s: %v", key, err)
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
		for _, v := range report.Violations() {
			t.Error(v)
		}
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
