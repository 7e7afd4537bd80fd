package cluster

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// All nodes of a cluster are replaced under load: one by a node that is added before, one that lost its
// directory, and one by an empty node at its place. Clients lose nothing, and see no error but those of the connection
// to a node that went.
func TestNodesAreReplacedUnderLoad(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		binary, err := harness.Server()
		if err != nil {
			t.Fatal(err)
		}
		connectionsOnly(t, replaceAll(t, binary, splitsFlag(shards)...))
	})
}

// One node becomes three, and five, and the last one that came stays alone, under load.
func TestClusterGrowsAndShrinksUnderLoad(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		binary, err := harness.Server()
		if err != nil {
			t.Fatal(err)
		}
		connectionsOnly(t, growAndShrink(t, binary, splitsFlag(shards)...))
	})
}

// connectionsOnly fails the test where clients saw errors that are not those of a connection that ended, which
// they meet by trying again.
func connectionsOnly(t *testing.T, seen []string) {
	t.Helper()
	for _, e := range seen {
		if !strings.HasPrefix(e, "Unavailable: ") {
			t.Errorf("clients see %q", e)
		}
	}
}

// splitsFlag are the flags of a cluster with so many data shards.
func splitsFlag(shards int) []string {
	if splits := faults.Splits(shards); splits != "" {
		return []string{harness.SplitsFlag, splits}
	}
	return nil
}

// loaded is a cluster whose members change while clients pass locks round and write chains.
type loaded struct {
	*faults.Cluster
	t       *testing.T
	ctx     context.Context
	report  *faults.Report
	mutexes *faults.Mutexes
	work    []faults.Workload
	stop    context.CancelFunc
	running sync.WaitGroup
	// all is a client of all nodes, members or not.
	all *clientv3.Client
}

// load starts some nodes, and clients: six that know all nodes, and one for each of alone, which knows nothing but
// that node.
func load(t *testing.T, o faults.Options, alone ...int) *loaded {
	t.Helper()
	l := &loaded{t: t, report: &faults.Report{}}
	var err error
	o.Dir = t.TempDir()
	l.Cluster, err = faults.New(o)
	l.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range append(l.Nodes, l.Later...) {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		l.must(l.Close())
	})
	var cancel context.CancelFunc
	l.ctx, cancel = context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	l.must(l.Start(l.ctx))
	nodes := append(append([]*faults.Node(nil), l.Nodes...), l.Later...)
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.Client)
	}
	dial := func(endpoints ...string) *clientv3.Client {
		c, err := faults.Dial(endpoints...)
		l.must(err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var know []*clientv3.Client
	for range 6 {
		know = append(know, dial(endpoints...))
	}
	l.all = dial(endpoints...)
	chained := append([]*clientv3.Client(nil), know[:2]...)
	for _, i := range alone {
		chained = append(chained, dial(nodes[i].Client))
	}
	l.mutexes = faults.NewMutexes(l.report, 4, know)
	l.work = []faults.Workload{l.mutexes, faults.NewChains(l.report, 2*len(chained), chained)}
	var work context.Context
	work, l.stop = context.WithCancel(l.ctx)
	for _, w := range l.work {
		l.running.Go(func() { w.Run(work) })
	}
	l.busy()
	return l
}

// busy waits until clients have done something more.
func (l *loaded) busy() {
	l.t.Helper()
	const some = 100
	for from := l.report.Operations.Load(); l.report.Operations.Load() < from+some; {
		if pause(l.ctx, 20*time.Millisecond); l.ctx.Err() != nil {
			l.t.Fatalf("only %d operations since a member came or went; broken so far: %q", l.report.Operations.Load()-from, l.report.Violations())
		}
	}
}

// join has a node join, and clients work on.
func (l *loaded) join(n *faults.Node) {
	l.t.Helper()
	l.must(l.Join(l.ctx, l.all, n, false))
	l.busy()
}

// leave removes a node, and clients work on.
func (l *loaded) leave(n *faults.Node) {
	l.t.Helper()
	l.must(l.Leave(l.ctx, l.all, n))
	l.busy()
}

// finish checks what clients saw, and that the nodes hold the same, and returns the errors that clients saw.
func (l *loaded) finish() []string {
	l.t.Helper()
	l.stop()
	l.running.Wait()
	for _, w := range l.work {
		w.Check(l.ctx)
	}
	each, done, err := faults.DialEach(l.Cluster)
	l.must(err)
	l.must(faults.Compare(l.ctx, l.report, each))
	l.must(done())
	kept(l.t, l.report)
	list, err := l.all.MemberList(l.ctx)
	l.must(err)
	if len(list.Members) != len(l.Nodes) {
		l.t.Errorf("members %v, want %d", list.Members, len(l.Nodes))
	}
	l.t.Logf("operations=%d errors=%q", l.report.Operations.Load(), l.mutexes.Errors())
	return l.mutexes.Errors()
}

func (l *loaded) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// replaceAll replaces the three nodes of a cluster and returns the errors that clients of all nodes saw.
func replaceAll(t *testing.T, binary string, args ...string) []string {
	t.Helper()
	l := load(t, faults.Options{Binary: binary, Nodes: 3, Later: 1, Args: args}, 1, 2)
	l.join(l.Later[0])
	l.leave(l.Nodes[0])
	l.Nodes[0], l.Later = l.Later[0], nil

	l.must(l.Nodes[1].Lose())
	l.busy()
	for _, n := range l.Nodes[1:] {
		l.leave(n)
		l.join(n)
	}
	return l.finish()
}

// growAndShrink has a node grow to three and five, and all but the last leave, and returns the errors that clients
// of all nodes saw.
func growAndShrink(t *testing.T, binary string, args ...string) []string {
	t.Helper()
	l := load(t, faults.Options{Binary: binary, Nodes: 1, Later: 4, Args: args}, 4)
	for _, n := range l.Later {
		l.join(n)
		l.Nodes = append(l.Nodes, n)
	}
	l.Later = nil
	for len(l.Nodes) > 1 {
		n := l.Nodes[0]
		l.leave(n)
		l.Nodes, l.Later = l.Nodes[1:], append(l.Later, n)
	}
	return l.finish()
}
