package sim

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/shard"
)

// unfinished makes a transaction that puts a/x and b/x, whose Finish reaches the second shard after a
// while. It returns the revision at which it was answered.
func (c *cluster) unfinished(tb testing.TB, while time.Duration) int64 {
	tb.Helper()
	c.script(func(k call, _ int) interference {
		if k.name == "Finish" {
			return interference{before: while}
		}
		return interference{}
	})
	resp, err := c.node(1).router.Txn(tb.Context(), putBoth("1"))
	if err != nil {
		tb.Fatal(err)
	}
	if !c.held("b/x") {
		c.unshown("it is finished")
	}
	return resp.Header.Revision
}

// A command finds its keys free, and a Prepare that holds them applies before it. The
// command waits until the transaction is settled.
func TestCommandBehindAPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.slowApply(3, shardB, 30*time.Millisecond)
		c.delayStep(shardA, 2, 60*time.Millisecond)
		txn := c.node(1).txn(t.Context(), putBoth("1", absent("b/x")))
		time.Sleep(5 * time.Millisecond)
		c.unknownToTheLeader()
		put := c.node(3).putting(t.Context(), "b/x", "2")
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		behind, err := put.wait()
		if err != nil {
			t.Fatal(err)
		}
		if n, r := resp.Header.Revision, behind.Header.Revision; resp.Succeeded != (n < r) {
			t.Errorf("the transaction at %d found the key absent: %v; it was put at %d", n, resp.Succeeded, r)
		}
	})
}

// So does a command that only reads what is held, and writes something else.
func TestCommandThatReadsBehindAPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.slowApply(3, shardB, 40*time.Millisecond)
		c.script(func(k call, n int) interference {
			switch {
			case k.name == "Finish":
				return interference{before: 200 * time.Millisecond}
			case k.name == "Ask" && k.from == 3 && n == 2:
				return interference{before: 30 * time.Millisecond}
			}
			return interference{}
		})
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(4 * time.Millisecond)
		c.unknownToTheLeader()
		read := c.node(3).txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
			wrapRange(&pb.RangeRequest{Key: []byte("b/x")}), wrapPut(&pb.PutRequest{Key: []byte("b/y")}),
		}})
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		got, err := read.wait()
		if err != nil {
			t.Fatal(err)
		}
		found := got.Responses[0].GetResponseRange().Count == 1
		if n, r := resp.Header.Revision, got.Header.Revision; found != (n < r) {
			t.Errorf("a command at %d has found what a transaction put at %d: %v", r, n, found)
		}
	})
}

// So does the Prepare of another transaction: one of the two finds the key absent.
func TestPrepareBehindAPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.slowApply(3, shardB, 30*time.Millisecond)
		c.delayStep(shardA, 2, 60*time.Millisecond)
		one := c.node(1).txn(t.Context(), putBoth("1", absent("b/x")))
		time.Sleep(5 * time.Millisecond)
		c.unknownToTheLeader()
		req := puts("b/x", "c/x")
		req.Compare = []*pb.Compare{absent("b/x")}
		two := c.node(2).txn(t.Context(), req)
		succeeded := 0
		for _, txn := range []*later[*pb.TxnResponse]{one, two} {
			resp, err := txn.wait()
			if err != nil {
				t.Fatal(err)
			}
			if resp.Succeeded {
				succeeded++
			}
		}
		if found, _ := c.node(1).read(t, "b/x", ""); succeeded != 1 || found["b/x"].Version != 1 {
			t.Errorf("%d of two transactions found the key absent, which is now %v", succeeded, found)
		}
	})
}

// The Finish of a transaction that was answered is late. Reads at any node wait for it.
func TestReadWaitsForTheFinish(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		rev := c.unfinished(t, 50*time.Millisecond)
		for _, n := range c.nodes {
			if found, at := n.running().read(t, "b/x", ""); found["b/x"].GetModRevision() != rev || at < rev {
				t.Errorf("node %d at %d shows %v, which was put at %d", n.id, at, found, rev)
			}
		}
	})
}

// A read of several keys of one shard is promised its revision, then a transaction comes to hold one of them,
// and commits, and another is written. The read, which may show more than was promised, shows no
// state that lacks the transaction.
func TestReadBelowAHold(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		p := c.node(1)
		p.put(t, "b/0", "0")
		c.script(func(k call, n int) interference {
			switch {
			case k.name == "Finish":
				return interference{before: 200 * time.Millisecond}
			case k.name == "Promise" && k.from == 2 && k.shard == shardB:
				return interference{after: 60 * time.Millisecond}
			}
			return interference{}
		})
		read := meanwhile(func() (*pb.RangeResponse, error) {
			return c.node(2).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("b/"), RangeEnd: []byte("b0")})
		})
		time.Sleep(10 * time.Millisecond)
		if _, err := p.router.Txn(t.Context(), putBoth("1")); err != nil {
			t.Fatal(err)
		}
		p.put(t, "b/y", "y")
		got, err := read.wait()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		again, err := p.router.Range(t.Context(), &pb.RangeRequest{Key: []byte("b/"), RangeEnd: []byte("b0"), Revision: got.Header.Revision})
		if err != nil {
			t.Fatal(err)
		}
		if got.Count != again.Count {
			t.Errorf("a read at %d found %v, and later %v", got.Header.Revision, got.Kvs, again.Kvs)
		}
	})
}

// A replica applies late. A read there that begins after a transaction was answered sees it: it looks
// for holds when the replica is as far as was promised, not before.
func TestViewIsOpenedBehindThePromise(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.slowApply(2, shardB, 40*time.Millisecond)
		resp, err := c.node(1).router.Txn(t.Context(), putBoth("1"))
		if err != nil {
			t.Fatal(err)
		}
		if rev := c.node(2).shards[shardB].Store().Rev(); rev >= resp.Header.Revision {
			c.unshown("the replica has applied it")
		}
		if found, at := c.node(2).read(t, "a/", "c"); found["b/x"].GetModRevision() != resp.Header.Revision {
			t.Errorf("a read at %d shows %v, which was put at %d", at, found, resp.Header.Revision)
		}
	})
}

// While a key is held another is written, and a third held. A watch of all hears of the transaction first, whose
// revision is lower, a watch of the other key at once, and one of all shards of everything in order.
func TestWatchesOfHeldKeys(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		p := c.node(1)
		span, other, all := c.watchSpan(p, "b/", "b0"), c.watchSpan(p, "b/y", ""), c.watchAll(p)
		rev := c.unfinished(t, 100*time.Millisecond)
		next := p.put(t, "b/y", "y")
		if at := other.heard(t, 1)[0].Kv.ModRevision; at != next {
			t.Errorf("a watch of the other key heard of %d, expected %d", at, next)
		}
		if _, err := p.router.Txn(t.Context(), puts("a/z", "b/z")); err != nil {
			t.Fatal(err)
		}
		if heard := span.events(); len(heard) > 0 || !c.held("b/x") || !c.held("b/z") {
			t.Errorf("while b/x is held a watch of it heard %v", heard)
		}
		span.inOrder(t, 3)
		if at := span.events()[0].Kv.ModRevision; at != rev {
			t.Errorf("a watch heard of %d first, expected %d", at, rev)
		}
		all.inOrder(t, 5)
	})
}

// Replicas are hashed at a revision while the changes of a transaction below it are missing in some, and
// in others not. The hashes are the same.
func TestHashesWaitForHolds(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.unfinished(t, 100*time.Millisecond)
		rev := c.node(3).put(t, "b/y", "y")
		if err := c.agree(t.Context(), shardB); err != nil {
			t.Fatal(err)
		}
		if !c.held("b/x") {
			c.unshown("it is finished")
		}
		hash := func(id uint64) (shard.Fingerprint, error) {
			return c.node(id).shards[shardB].Fingerprint(t.Context(), rev, -1)
		}
		early := meanwhile(func() (shard.Fingerprint, error) { return hash(2) })
		time.Sleep(time.Second)
		late, err := hash(3)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := early.wait(); err != nil || got != late {
			t.Errorf("%v, %v while it was held, %v later", got, err, late)
		}
	})
}

// A compaction is acknowledged while a transaction holds keys below it. The shard takes it
// over when the changes of the transaction are there.
func TestSweepsWaitForHolds(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		p := c.node(1)
		first := p.put(t, "b/x", "0")
		rev := c.unfinished(t, 400*time.Millisecond)
		last := p.put(t, "b/y", "y")
		p.compact(t, last)
		if !c.held("b/x") {
			c.unshown("it is finished")
		}
		time.Sleep(200 * time.Millisecond)
		if got := c.node(3).shards[shardB].Store().Compacted(); got > first {
			t.Errorf("swept up to %d while changes at %d are missing", got, rev)
		}
		time.Sleep(time.Second)
		for _, n := range c.nodes {
			d := n.running().shards[shardB]
			if err := d.AwaitSwept(t.Context(), last); err != nil {
				t.Fatal(err)
			}
			if got := d.Store().Compacted(); got != last {
				t.Errorf("node %d has swept to %d, expected %d", n.id, got, last)
			}
		}
		found, _ := p.read(t, "b/x", "")
		if kv := found["b/x"]; kv.GetModRevision() != rev || kv.Version != 2 {
			t.Errorf("b/x is %v, expected to be of %d", kv, rev)
		}
	})
}
