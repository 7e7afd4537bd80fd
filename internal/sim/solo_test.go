package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
)

// A cluster of one shard that counts by itself gets an order of revisions while clients
// use it and leaders change. Nobody may be answered from an order that is not ahead of
// what was there before.
func TestSoloBecomesOrdered(t *testing.T) {
	untilShown(t, options{seed: seed(t), snapshotEntries: 400}, func(c *cluster) {
		w := newWorkload(c.tb, c)
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
			err := c.leader(ctx, placement.SystemShard).cluster.BeginOrder(attempt, past.Rev, past.Compacted)
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
			c.unshown("at %d after %d", last, past.Rev)
		}
		w.verify(last)
	})
}

// solo runs a test on a cluster of one shard that counts by itself, led by node 1.
func solo(t *testing.T, fn func(c *cluster)) {
	t.Helper()
	bubbleOf(t, options{seed: seed(t), snapshotEntries: 60}, fn)
}

// A node that does not know that its shard has become an ordered one reads at a revision
// that was compacted since. It learns of the order as it waits to be up to date: only the
// system shard knows of the compaction.
func TestReadThatMeetsTheOrder(t *testing.T) {
	solo(t, func(c *cluster) {
		t := c.tb
		c.unswept.Store(true)
		old := c.node(1).put(t, "x", "1")
		c.node(1).put(t, "x", "2")
		if err := c.agree(t.Context(), placement.FirstDataShard); err != nil {
			t.Fatal(err)
		}
		c.net.setDecide(func(l link, system bool, _ *raftpb.Message) fate {
			return fate{lose: !system && (l.to == 3 || l.from == 3)}
		})
		past, err := c.node(1).shards[placement.FirstDataShard].Order(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.node(1).cluster.BeginOrder(t.Context(), past.Rev, past.Compacted); err != nil {
			t.Fatal(err)
		}
		c.node(1).compact(t, c.node(1).put(t, "x", "3"))
		if c.node(3).shards[placement.FirstDataShard].Shape().Ordered {
			c.unshown("node 3 knows of the order")
		}
		read := meanwhile(func() (*pb.RangeResponse, error) {
			return c.node(3).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("x"), Revision: old})
		})
		time.Sleep(10 * time.Millisecond)
		c.net.setDecide(nil)
		if resp, err := read.wait(); !errors.Is(err, mvcc.ErrCompacted) {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// A compaction comes while the shard becomes an ordered one, from a node that does not know
// it yet. It waits for the order to begin, and no longer.
func TestCompactionThatMeetsTheOrder(t *testing.T) {
	solo(t, func(c *cluster) {
		t := c.tb
		last := c.node(1).put(t, "x", "1")
		if err := c.agree(t.Context(), placement.FirstDataShard); err != nil {
			t.Fatal(err)
		}
		c.net.setDecide(func(l link, system bool, _ *raftpb.Message) fate {
			return fate{lose: !system && (l.to == 3 || l.from == 3)}
		})
		past, err := c.node(1).shards[placement.FirstDataShard].Order(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.node(3).shards[placement.FirstDataShard].Shape().Ordered {
			c.unshown("node 3 knows of the order")
		}
		compaction := meanwhile(func() (*pb.CompactionResponse, error) {
			return c.node(3).router.Compact(t.Context(), &pb.CompactionRequest{Revision: last})
		})
		time.Sleep(10 * time.Millisecond)
		c.net.setDecide(nil)
		time.Sleep(300 * time.Millisecond)
		select {
		case <-compaction.done:
			t.Fatalf("answered before there was an order: %v, %v", compaction.resp, compaction.err)
		default:
		}
		if err := c.node(1).cluster.BeginOrder(t.Context(), past.Rev, past.Compacted); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := compaction.wait(); err != nil || time.Since(began) > 500*time.Millisecond {
			t.Errorf("%v, %v after the order began", err, time.Since(began))
		}
	})
}
