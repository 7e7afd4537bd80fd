package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
)

// A cluster of one shard that counts by itself gets an order of revisions while clients
// use it and leaders change. Nobody may be answered from an order that is not ahead of
// what was there before.
func TestSoloBecomesOrdered(t *testing.T) {
	s := seed(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, options{seed: s, snapshotEntries: 400})
		defer c.close()
		w := newWorkload(t, c)
		c.net.setFaults(faults{lose: 5, repeat: 10, reorder: 10, late: 20 * time.Millisecond, loseCall: 5, loseAnswer: 5, slow: 60})
		w.start(8)
		chaos{transfers: 50 * time.Millisecond, cuts: time.Second}.wreak(w)
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		// Between the steps there is an ordered shard and no order.
		var past shard.Past
		for {
			p := c.leader(ctx, placement.FirstDataShard)
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			var err error
			past, err = p.shards[placement.FirstDataShard].Order(attempt)
			cancel()
			if err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		for {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			err := c.leader(ctx, placement.SystemShard).cluster.BeginOrder(attempt, past)
			cancel()
			if err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.solo = past.Rev
		time.Sleep(3 * time.Second)
		last := w.settle()
		if last <= past.Rev || past.Rev < 100 {
			t.Fatalf("at %d after %d; the run shows nothing", last, past.Rev)
		}
		w.verify(last)
	})
}
