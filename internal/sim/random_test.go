package sim

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// end has the clients and the chaos end.
func (w *workload) end() {
	if !w.stopped() {
		close(w.stop)
	}
}

// calm heals the cluster.
func (w *workload) calm() {
	w.c.net.setFaults(faults{})
	w.c.net.setDecide(nil)
	w.c.setInterfere(func(call) interference { return interference{} })
	w.c.net.heal()
	w.c.setStall(func(uint64, uint64, string) time.Duration { return 0 })
}

// settle ends the workload, heals the cluster and waits until nothing is under way any
// more. It returns the last revision.
func (w *workload) settle() int64 {
	w.tb.Helper()
	w.end()
	w.wg.Wait()
	w.calm()
	w.c.unheld(w.tb)
	ctx, cancel := context.WithTimeout(w.c.ctx, time.Minute)
	defer cancel()
	// Whatever is granted ends by itself.
	for {
		resp, err := w.c.alive()[0].router.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
		if err == nil && len(resp.Leases) == 0 {
			break
		}
		if !pause(ctx, 100*time.Millisecond) {
			w.tb.Fatalf("leases are left: %v, %v", resp, err)
		}
	}
	resp, err := w.c.alive()[0].router.Put(ctx, &pb.PutRequest{Key: []byte("z"), Value: []byte("the end")})
	if err != nil {
		w.tb.Fatal(err)
	}
	last := resp.Header.Revision
	w.h.ops = append(w.h.ops, &op{
		p: w.c.alive()[0], begin: w.h.clock.Add(1), end: w.h.clock.Add(1), outcome: answered, resp: resp,
		req: &pb.PutRequest{Key: []byte("z"), Value: []byte("the end")},
	})
	// Progress is told up to what clients of the node have seen.
	for _, p := range w.c.alive() {
		if _, err := p.router.Range(ctx, &pb.RangeRequest{Key: []byte("z")}); err != nil {
			w.tb.Fatal(err)
		}
	}
	w.mu.Lock()
	all := append(w.watchers, w.collector)
	w.mu.Unlock()
	for _, watch := range all {
		for !watch.done() && watch.reached() < last {
			w.askProgress()
			if !pause(ctx, 20*time.Millisecond) {
				w.tb.Fatalf("watcher of [%q, %q) from %d hangs on node %d at %d, %d is the last revision: %s", watch.key, watch.end, watch.first, watch.where, watch.reached(), last, w.c.resolved())
			}
		}
	}
	return last
}

// resolved says how far all nodes know that nothing is missing.
func (c *cluster) resolved() string {
	var b strings.Builder
	for _, p := range c.alive() {
		for id, d := range p.shards {
			fmt.Fprintf(&b, "node %d shard %d: applied %d, at %d, resolved %d; ", p.node.id, id, d.Replica().Applied(), d.Store().Rev(), d.Store().Resolved())
		}
	}
	return b.String()
}

// verify holds all that was heard against the truth.
func (w *workload) verify(last int64) {
	w.tb.Helper()
	t, err := newTruth(w.collector.events())
	if err != nil {
		w.tb.Fatal(err)
	}
	k := &checker{tb: w.tb, t: t, h: w.h, leases: w.leases, solo: w.solo}
	k.check()
	for _, watch := range append(w.watchers, w.collector) {
		if err := watch.check(t, last); err != nil {
			w.tb.Errorf("watcher of [%q, %q) from %d, %d nodes: %v", watch.key, watch.end, watch.first, watch.moves, err)
		}
	}
	w.replicas(t, last)
	counts := w.h.tally()
	w.tb.Logf("%d calls answered, %d refused, %d of unknown outcome; %d revisions up to %d, %d watchers, %d leases, %d fail-overs",
		counts[answered], counts[refused], counts[unknown], len(t.revs), last, len(w.watchers), len(w.leases), w.c.terms())
}

// replicas checks that all nodes hold the same.
func (w *workload) replicas(t *truth, last int64) {
	w.tb.Helper()
	ctx, cancel := context.WithTimeout(w.c.ctx, time.Minute)
	defer cancel()
	want := t.in([]byte{0}, []byte{0}, last)
	hashes := make(map[uint32]bool)
	for _, p := range w.c.alive() {
		resp, err := p.router.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
		if err != nil {
			w.tb.Fatal(err)
		}
		if len(resp.Kvs) != len(want) {
			w.tb.Errorf("node %d has %d keys, expected %d", p.node.id, len(resp.Kvs), len(want))
		}
		for _, kv := range resp.Kvs {
			if kv.Lease != 0 {
				w.tb.Errorf("key without a lease: %v", kv)
			}
		}
		for _, d := range p.shards {
			if err := w.c.agree(ctx, d.Replica().ShardID()); err != nil {
				w.tb.Fatal(err)
			}
		}
		h, err := p.router.HashKV(ctx, last)
		if err != nil {
			w.tb.Fatal(err)
		}
		hashes[h.Hash] = true
	}
	if len(hashes) != 1 {
		w.tb.Errorf("hashes differ: %v", hashes)
	}
}

// agree waits until all replicas of a shard have applied the same and swept as far.
func (c *cluster) agree(ctx context.Context, id uint64) error {
	for {
		indexes, swept := make(map[uint64]bool), make(map[int64]bool)
		for _, p := range c.alive() {
			d := p.shards[id]
			indexes[d.Replica().Applied()] = true
			swept[d.Store().Compacted()] = true
		}
		if len(indexes) == 1 && len(swept) == 1 {
			return nil
		}
		if !pause(ctx, 10*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// run lets clients use a cluster that is being broken, and checks everything.
func run(t *testing.T, o options, f faults, ch chaos, clients int, length time.Duration) {
	t.Helper()
	t.Logf("seed %d", o.seed)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, o)
		defer c.close()
		w := newWorkload(t, c)
		if len(o.splits) == 0 {
			w.solo = math.MaxInt64
		}
		c.net.setFaults(f)
		w.start(clients)
		ch.wreak(w)
		w.wg.Go(func() { every(c.rnd, 2*time.Second, w.stop, func() { w.compact(c.rnd) }) })
		time.Sleep(length)
		w.verify(w.settle())
	})
}

// Everything at once: thousands of fail-overs a minute, links that are cut one way or
// both, power cuts, and a network that loses, repeats, delays and reorders.
func TestRandom(t *testing.T) {
	first := seed(t)
	length := unlessShort(10*time.Second, 3*time.Second)
	for round := range uint64(sized(1, 100)) {
		run(t, options{seed: first + round, splits: fourShards, snapshotEntries: 400},
			faults{lose: 5, repeat: 10, reorder: 10, late: 20 * time.Millisecond, loseCall: 5, loseAnswer: 5, slow: 60},
			chaos{transfers: 15 * time.Millisecond, campaigns: 100 * time.Millisecond, cuts: 500 * time.Millisecond, deaths: 3 * time.Second}, 8, length)
	}
}

// Replicas that apply at different speeds, and goroutines that stand still between two steps
// of a rule, with one shard and with four; links that are slow and leaders that change now
// and then, so that much is under way. There are no snapshots: dragonboat holds a lock while
// it applies, which one that is to be taken waits for, and time in a bubble stands still
// while anybody waits for a lock.
func TestRandomStalls(t *testing.T) {
	first := seed(t)
	length := unlessShort(8*time.Second, 3*time.Second)
	for round := range uint64(sized(1, 30)) {
		for _, splits := range [][]string{nil, fourShards} {
			run(t, options{seed: first + round, splits: splits, snapshotEntries: never},
				faults{lose: 2, repeat: 5, reorder: 5, late: 20 * time.Millisecond, loseCall: 2, loseAnswer: 2, slow: 60},
				chaos{
					transfers: 200 * time.Millisecond, campaigns: time.Second, cuts: 2 * time.Second, deaths: 5 * time.Second,
					speeds: 300 * time.Millisecond, stalls: 5,
				}, 8, length)
		}
	}
}
