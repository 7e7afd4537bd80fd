package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

const (
	// settled is how long transactions over several shards may take to settle once all shards
	// have leaders, and settledBusy that on a machine that is busy.
	settled     = 2 * time.Second
	settledBusy = settled + time.Second
)

// Transactions over several shards that lose their coordinator, or leaders of their shards, hold
// keys no longer than two seconds after there are new leaders, take place whole or not at all,
// and at one revision.
func TestTransactionsSettle(t *testing.T) {
	c := newCluster(t, 4, nil)
	report := &faults.Report{}
	seed := harness.Seed(t, "./e2e/cluster", c.shards)
	work, stop := context.WithCancel(t.Context())
	workloads := faults.Wide(report, seed, c.clients)
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for _, w := range workloads {
		running.Go(func() { w.Run(work) })
	}
	crowd := newCrowd(c)
	running.Go(func() { crowd.run(work) })
	for round := range harness.Sized(4, 40) {
		c.until("transactions", func(context.Context) error {
			if done := crowd.done.Load(); done < int64(100*(round+1)) {
				return fmt.Errorf("%d transactions were answered", done)
			}
			return nil
		})
		victim, broken := round%len(c.Nodes), "killed"
		end := c.Nodes[victim].Launch
		begin := time.Now()
		if round%2 == 0 {
			c.must(c.Nodes[victim].Kill())
		} else {
			broken, end = "frozen", c.Nodes[victim].Thaw
			c.must(c.Nodes[victim].Freeze())
		}
		led, left := c.settles(t, victim, begin)
		t.Logf("%s was %s: leaders after %v, transactions settled %v later", c.Nodes[victim].Name, broken, led, left)
		if left > settledBusy {
			t.Errorf("transactions hold keys %v after there are leaders, expected %v", left, settled)
		}
		c.must(end())
		c.healthy()
	}
	stop()
	running.Wait()
	for _, w := range workloads {
		w.Check(t.Context())
	}
	faults.CheckSettled(t.Context(), report, c.Cluster)
	c.must(faults.Compare(t.Context(), report, c.clients))
	kept(t, report)
	t.Logf("%d operations", report.Operations.Load()+crowd.done.Load())
}

// settles waits until no transaction from before a fault of a node holds keys on the others. It
// returns when these led all shards, since the fault, and how long it took from then.
func (c *cluster) settles(t *testing.T, victim int, fault time.Time) (led, left time.Duration) {
	t.Helper()
	for {
		leading, old := 0, false
		for i, n := range c.Nodes {
			if i == victim {
				continue
			}
			shards, err := n.ShardsLed(t.Context())
			c.must(err)
			leading += shards
			since := time.Since(fault)
			age, err := n.Metric(t.Context(), "latchkey_transactions_holding_oldest_seconds")
			c.must(err)
			old = old || age >= since.Seconds()
		}
		now := time.Since(fault)
		if led == 0 && leading == c.shards {
			led = now
		}
		if led != 0 && !old {
			return led, now - led
		}
		if now > patience {
			t.Fatalf("%v after a fault %d of %d shards have leaders, and transactions hold keys: %t", now, leading, c.shards, old)
		}
		pause(t.Context(), 5*time.Millisecond)
	}
}

// crowd is many clients that write over all shards at once, so that some transaction is at each of
// its steps at any time.
type crowd struct {
	c    *cluster
	done atomic.Int64
}

// crowded is how many clients each node has.
const crowded = 8

func newCrowd(c *cluster) *crowd { return &crowd{c: c} }

func (w *crowd) run(ctx context.Context) {
	var wg sync.WaitGroup
	for id := range crowded * len(w.c.clients) {
		wg.Go(func() {
			var ops []clientv3.Op
			for _, letter := range "adgjmpsvy" {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("%c/crowd/%d", letter, id), ""))
			}
			for ctx.Err() == nil {
				try, cancel := context.WithTimeout(ctx, promptly)
				if _, err := w.c.clients[id%len(w.c.clients)].Txn(try).Then(ops...).Commit(); err == nil {
					w.done.Add(1)
				} else {
					pause(ctx, 20*time.Millisecond)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}
