package mixed

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Clients of every kind take the same locks, on three nodes with four shards, while nodes are killed,
// frozen and cut off, connections are, and clients die and stand still: one holder at a time, or
// those that may be together, in the order of asking, with tokens that grow, and nothing is
// left behind.
func TestMixed(t *testing.T) {
	kinds, left, err := faults.Choose([]string{"kill", "freeze", "isolate"})
	must(t, err)
	if len(left) > 0 {
		t.Logf("left out: %s", strings.Join(left, ", "))
	}
	mix(t, 3, 4, &faults.Nemesis{Kinds: kinds, Longest: 3 * time.Second, Rest: 1500 * time.Millisecond},
		func(n *faults.Nemesis, seed uint64) error { return n.Each(t.Context(), seed) })
}

// workersOf is how many workers there are of each way.
const workersOf = 2

// mix has workers take locks of a cluster while fail breaks it, and judges.
func mix(t *testing.T, nodes, shards int, n *faults.Nemesis, fail func(n *faults.Nemesis, seed uint64) error) {
	t.Helper()
	e := newEnv(t, nodes, shards, n.Kinds)
	seed := harness.Seed(t, "./e2e/mixed", shards)
	n.Cluster, n.Gear, n.Report = e.Cluster, e.gear, &faults.Report{}
	clients, done, err := faults.DialEach(e.Cluster)
	must(t, err)
	defer func() { must(t, done()) }()

	work, stop := context.WithCancel(t.Context())
	defer stop()
	holds := make([]atomic.Int64, len(ways))
	var working sync.WaitGroup
	for i, way := range ways {
		for j := range workersOf {
			w := worker{e: e, way: way, rnd: rand.New(rand.NewPCG(seed, uint64(i*workersOf+j))), holds: &holds[i]}
			working.Go(func() { w.run(work) })
		}
	}
	for _, lock := range e.locks {
		working.Go(func() { e.watch(work, lock, clients) })
	}
	working.Go(func() { e.cutLinks(work, rand.New(rand.NewPCG(seed, 99))) })
	err = fail(n, seed)
	stop()
	working.Wait()
	e.running.Wait()
	must(t, err)
	e.judge(t)
	for i, way := range ways {
		t.Logf("%s: certainly had locks %d times", way.name, holds[i].Load())
		if holds[i].Load() < 3 {
			t.Errorf("%s: the run shows nothing", way.name)
		}
	}
	t.Logf("faults: %v, holds: %d, looks: %d", n.Report.Faults(), len(e.history.holds), len(e.history.looks))

	// Leases of those that died end by themselves, later where leaders have changed.
	ending, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	if err := harness.UntilDone(ending, func() error { return e.remains(ending, clients[0]) }); err != nil {
		t.Error(err)
	}
}

// judge fails the test for what is wrong, at first.
func (e *env) judge(t *testing.T) {
	t.Helper()
	const most = 20
	found := judge(&e.history)
	for i, v := range found {
		if i == most {
			t.Errorf("and %d more", len(found)-most)
			break
		}
		t.Error(v)
	}
}
