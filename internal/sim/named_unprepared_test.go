package sim

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// The home of these transactions is only put to, and is not prepared.

// The home can't reach a coordinator that is merely slow, and aborts its transaction, for which it holds nothing. The
// decision that comes late commits nothing, and the transaction is made anew.
func TestPutsAtAHomeAfterTheAbort(t *testing.T) {
	coordinated(t, func(c *cluster) { c.abortedBeforeItsHome(puts("a/x", "b/x")) })
}

// A transaction holds a key that another's home puts, whose leader has not applied that yet. The one that
// puts is behind it.
func TestPutsBehindAPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.slowApply(2, shardA, 60*time.Millisecond)
		c.delayStep(shardB, 1, 200*time.Millisecond) // the decision, as a/x is compared
		req := puts("a/x", "b/x")
		req.Compare = []*pb.Compare{absent("a/x")}
		one := c.node(1).txn(t.Context(), req)
		time.Sleep(5 * time.Millisecond)
		key := []keys.Span{keys.Point([]byte("a/x"))}
		if !c.held("a/x") || len(c.node(2).shards[shardA].Store().Met(nil, key)) > 0 {
			c.unshown("the leader knows of the Prepare already, or nobody does")
		}
		two := c.node(3).txn(t.Context(), puts("a/x", "c/x"))
		held, err := one.wait()
		if err != nil {
			t.Fatal(err)
		}
		put, err := two.wait()
		if err != nil {
			t.Fatal(err)
		}
		if n, r := held.Header.Revision, put.Header.Revision; held.Succeeded != (n < r) {
			t.Errorf("the transaction at %d found the key absent: %v; it was put at %d", n, held.Succeeded, r)
		}
	})
}
