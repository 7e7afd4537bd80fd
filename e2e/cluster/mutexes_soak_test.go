//go:build soak

package cluster

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Clients that know all nodes and pass locks round lose none in rolling restarts, and see
// no error that they would not see of etcd.
func TestMutexesOverRollingRestarts(t *testing.T) {
	etcd := filepath.Join(t.TempDir(), "etcd")
	if out, err := exec.Command("go", "build", "-C", "../../bench/peers", "-o", etcd, "go.etcd.io/etcd/server/v3").CombinedOutput(); err != nil {
		t.Fatalf("build etcd: %v: %s", err, out)
	}
	server, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	allowed := roll(t, "etcd", etcd)
	for _, shards := range []int{1, 4} {
		var args []string
		if splits := faults.Splits(shards); splits != "" {
			args = []string{"--initial-splits", splits}
		}
		for _, seen := range roll(t, "latchkey", server, args...) {
			if !slices.Contains(allowed, seen) {
				t.Errorf("%d shards: clients see %q, of etcd they see %q", shards, seen, allowed)
			}
		}
	}
}

// roll restarts the nodes of a cluster one after the other, over and over, and returns the
// errors that clients saw.
func roll(t *testing.T, name, binary string, args ...string) []string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := faults.New(faults.Options{Binary: binary, Nodes: 3, Dir: t.TempDir(), Args: args})
	must(err)
	defer func() { must(c.Close()) }()
	must(c.Start(t.Context()))
	var clients []*clientv3.Client
	for range 6 {
		client, err := faults.Dial(c.Endpoints()...)
		must(err)
		t.Cleanup(func() { _ = client.Close() })
		clients = append(clients, client)
	}
	n := &faults.Nemesis{Cluster: c, Report: &faults.Report{}, Kinds: []string{"rolling"}, Longest: time.Second, Rest: time.Second}
	mutexes := faults.NewMutexes(n.Report, 4, clients)
	each, done, err := faults.DialEach(c)
	must(err)
	must(faults.Run(t.Context(), n, 1, each, time.Minute, mutexes))
	must(done())
	for _, v := range n.Report.Violations() {
		t.Errorf("%s: %s", name, v)
	}
	t.Logf("%s %v: operations=%d faults=%v errors=%q", name, args, n.Report.Operations.Load(), n.Report.Faults(), mutexes.Errors())
	return mutexes.Errors()
}
