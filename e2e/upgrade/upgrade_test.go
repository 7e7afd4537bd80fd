//go:build upgrade

package upgrade

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/system"
)

// versionMetric is the cluster version as a node knows it.
const versionMetric = "latchkey_cluster_version"

// Nodes of an earlier version are replaced by those of this one, one by one, on the same
// directories, while clients write, watch, keep leases and pass locks round. Nothing that was
// acknowledged is lost, no lease ends that is kept, no watch misses anything and no lock
// has two holders. When the last has been replaced, and not before, the cluster version rises, and members
// may come and go.
func TestUpgradeNodeByNode(t *testing.T) {
	before := earlier(t)
	now, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	const shards = 4
	dir := t.TempDir()
	// A node that runs keeps its program; one that is started takes that of the moment.
	program := filepath.Join(dir, "program")
	use := func(bin string) {
		t.Helper()
		if err := os.RemoveAll(program); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(bin, program); err != nil {
			t.Fatal(err)
		}
	}
	use(before)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := faults.New(faults.Options{Binary: program, Nodes: 3, Later: 1, Dir: dir, Args: []string{"--initial-splits", faults.Splits(shards)}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, n := range slices.Concat(c.Nodes, c.Later) {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
	}()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	clients, done, err := faults.DialEach(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = done() }() // the nodes are gone

	made := version(ctx, t, c.Nodes[0])
	report := &faults.Report{}
	workloads := []faults.Workload{
		faults.NewChains(report, 6, clients),
		faults.NewLeases(report, 4, 6, 25*time.Second, clients),
		faults.NewMutexes(report, 3, clients),
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, w := range workloads {
		wg.Go(func() { w.Run(work) })
	}
	busy(ctx, t, report)
	use(now)
	for i, n := range c.Nodes {
		if _, err := n.Terminate(); err != nil {
			t.Fatal(err)
		}
		if err := n.Launch(); err != nil {
			t.Fatal(err)
		}
		if i < len(c.Nodes)-1 {
			if err := n.AwaitHealthy(ctx); err != nil {
				t.Fatal(err)
			}
			if v := version(ctx, t, n); v != made {
				t.Errorf("with %d of %d nodes upgraded the cluster version is %v, was %v", i+1, len(c.Nodes), v, made)
			}
			if _, err := clients[i].MemberAdd(ctx, []string{"http://127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), system.ErrVersion.Error()) {
				t.Errorf("with %d of %d nodes upgraded, adding a member: %v", i+1, len(c.Nodes), err)
			}
			// Nodes of both versions lead, and hand over.
			for range c.Nodes {
				moveLeader(ctx, t, c, clients)
			}
		}
		busy(ctx, t, report)
	}
	if err := c.AwaitHealthy(ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		for version(ctx, t, n) != system.Version {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: the cluster version does not become %v", n.Name, system.Version)
			}
		}
	}
	busy(ctx, t, report)
	// All know members that come and go now.
	if err := c.Join(ctx, clients[0], c.Later[0], false); err != nil {
		t.Fatal(err)
	}
	busy(ctx, t, report)
	if err := c.Leave(ctx, clients[0], c.Nodes[2]); err != nil {
		t.Fatal(err)
	}
	if err := c.Join(ctx, clients[0], c.Nodes[2], false); err != nil {
		t.Fatal(err)
	}
	busy(ctx, t, report)
	stop()
	wg.Wait()
	for _, w := range workloads {
		w.Check(ctx)
	}
	if err := faults.Compare(ctx, report, clients); err != nil {
		t.Error(err)
	}
	for _, v := range report.Violations() {
		t.Error(v)
	}
	t.Logf("cluster version %v, then %v; operations=%d", made, system.Version, report.Operations.Load())
}

// moveLeader has the node that leads the system shard hand over to the next.
func moveLeader(ctx context.Context, t *testing.T, c *faults.Cluster, clients []*clientv3.Client) {
	t.Helper()
	for {
		ids, leader := make([]uint64, len(clients)), -1
		for i, client := range clients {
			if s, err := client.Status(ctx, c.Nodes[i].Client); err == nil {
				if ids[i] = s.Header.MemberId; s.Leader == ids[i] {
					leader = i
				}
			}
		}
		if leader >= 0 {
			if to := ids[(leader+1)%len(ids)]; to != 0 {
				if _, err := clients[leader].MoveLeader(ctx, to); err == nil {
					return
				}
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("the leader of the system shard does not move")
		}
	}
}

// busy waits until clients have done something more.
func busy(ctx context.Context, t *testing.T, r *faults.Report) {
	t.Helper()
	const some = 200
	for from := r.Operations.Load(); r.Operations.Load() < from+some; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("only %d operations", r.Operations.Load()-from)
		}
	}
}

// version returns the cluster version as a node knows it.
func version(ctx context.Context, t *testing.T, n *faults.Node) float64 {
	t.Helper()
	for {
		v, err := n.Metric(ctx, versionMetric)
		if err == nil {
			return v
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
