package sim

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
)

// A leader has been deposed and does not know it. The first that its successor does is to have a
// transaction hold keys, which takes no number, and the transaction is committed elsewhere. Nothing
// is promised up to its revision: the oracle has heard of the successor before.
func TestClaimBehindAPrepare(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		for range 2 {
			if err := c.promiseTogether(shardB, c.node(3).put(t, "a/x", "0"), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		old := c.node(1).shards[shardB].Replica()
		term := old.Serving()
		c.replace()
		a := c.attempt(1)
		a.prepared(shardA, shardB)
		rev, err := a.decide()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.promiseTogether(shardB, rev, 2*tick); err == nil {
			t.Errorf("revision %d was promised by the leader of before", rev)
		}
		if old.Serving() != term {
			c.unshown("the deposed leader knows")
		}
	})
}

// A leader applies a Prepare later than the coordinator's node, so that the transaction is
// committed before. What it promises up to the transaction's revision waits for the Prepare.
func TestPromiseWaitsForAPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		// From here on node 1 asks for no numbers without a name, and the oracle knows the leader.
		if _, err := c.node(1).router.Txn(t.Context(), puts("a/y", "b/y")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.promiseAt(3, shardB, c.node(3).put(t, "b/y", "0"), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		c.slowApply(3, shardB, 30*time.Millisecond)
		resp, err := c.node(1).router.Txn(t.Context(), putBoth("1"))
		if err != nil {
			t.Fatal(err)
		}
		c.unknownToTheLeader()
		rev := resp.Header.Revision
		if err := c.promiseAt(3, shardB, rev, time.Second); err != nil {
			t.Fatal(err)
		}
		d := c.node(3).shards[shardB].Store()
		if got := d.ResolvedOf(); got >= rev && d.Rev() < rev {
			t.Errorf("the leader takes itself for complete up to %d, without what was written at %d", got, rev)
		}
	})
}

// A read has been promised its revision when a transaction comes to hold its key. It does not wait
// for that, whose revision is higher.
func TestReadDoesNotWaitForALaterHold(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		before := c.node(3).put(t, "b/x", "0")
		newest := c.node(1).put(t, "a/y", "0")
		reached := make(chan struct{}, 1)
		c.script(func(k call, _ int) interference {
			if k.name == "Promise" && k.from == 2 && k.shard == shardB {
				reached <- struct{}{}
				return interference{after: 60 * time.Millisecond}
			}
			return interference{}
		})
		read := meanwhile(func() (*pb.RangeResponse, error) {
			return c.node(2).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("b/x")})
		})
		<-reached
		time.Sleep(20 * time.Millisecond)
		c.attempt(1).prepared(shardB)
		if rev := c.node(3).shards[shardB].Store().Rev(); rev >= newest {
			c.unshown("the shard is at %d", rev)
		}
		got, err := read.wait()
		if err != nil {
			t.Fatal(err)
		}
		if len(c.node(2).shards[shardB].Store().Met(nil, []keys.Span{keys.Point([]byte("b/x"))})) == 0 {
			t.Error("the read has waited for the transaction")
		}
		if got.Header.Revision < newest || got.Count != 1 || got.Kvs[0].ModRevision != before {
			t.Errorf("read %v", got)
		}
	})
}
