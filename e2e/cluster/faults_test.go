package cluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Clients see nothing that a single etcd could not have shown them while a minority of
// the nodes suffers whatever the machine allows, and all are restarted.
func TestFaults(t *testing.T) {
	kinds, left, err := faults.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Logf("left out: %s", strings.Join(left, ", "))
	}
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, kinds)
		seed := harness.Seed(t, "./e2e/cluster", shards)
		n := &faults.Nemesis{
			Cluster: c.Cluster, Gear: c.gear, Report: &faults.Report{}, Kinds: kinds,
			Longest: time.Duration(harness.Sized(3, 10)) * time.Second, Rest: time.Second,
		}
		sets := faults.NewLockSet(n.Report, seed, c.clients)
		c.must(faults.Run(t.Context(), n, seed, c.clients, time.Duration(harness.Sized(10, 300))*time.Second, append(faults.Wide(n.Report, seed, c.clients),
			faults.NewChains(n.Report, 8, c.clients), faults.NewRegisters(n.Report, seed, c.clients),
			faults.NewLeases(n.Report, 4, 6, 25*time.Second, c.clients), sets)...))
		faults.CheckSettled(t.Context(), n.Report, c.Cluster)
		t.Logf("operations=%d faults=%v, %d numbers lost behind unchecked tokens", n.Report.Operations.Load(), n.Report.Faults(), sets.Lost)
		kept(t, n.Report)
		suffered(t, n.Report)
	})
}

// Leaders of many shards end up spread evenly over the nodes, and a node that is stopped
// hands over what it leads before it goes.
func TestLeadersAreSpread(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 12, nil)
	spread := func(most int) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			led := make([]int, len(c.Nodes))
			even, sum := true, 0
			for i := range c.Nodes {
				n, err := c.Nodes[i].ShardsLed(t.Context())
				if err != nil {
					n = -1
				}
				led[i] = n
				sum += max(n, 0)
				even = even && n <= most
			}
			if even && sum == c.shards {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the nodes lead %v of %d shards", led, c.shards)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	spread(4)
	took, err := c.Nodes[0].Terminate()
	c.must(err)
	t.Logf("stopping took %v", took)
	spread(6)
	c.must(c.Nodes[0].Launch())
	c.healthy()
	spread(4)
}

// A rolling restart costs clients of all nodes no error but those of the connection to
// the node that goes, and no lock.
func TestRollingRestart(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		n := &faults.Nemesis{Cluster: c.Cluster, Report: &faults.Report{}, Kinds: []string{"rolling"}, Longest: time.Second, Rest: time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c.must(faults.Run(ctx, n, 1, c.clients, 5*time.Second,
			faults.NewChains(n.Report, 6, c.clients), faults.NewLeases(n.Report, 4, 6, 25*time.Second, c.clients)))
		kept(t, n.Report)
		suffered(t, n.Report)
		t.Logf("operations=%d faults=%v", n.Report.Operations.Load(), n.Report.Faults())
	})
}
