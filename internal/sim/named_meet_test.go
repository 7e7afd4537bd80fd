package sim

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

// soon bounds what transactions take that meet: a few ways each, nobody's patience.
const soon = 500 * time.Millisecond

// crossing has two transactions hold a key each on different shards: that of node 1 a/x, that of node 2 b/x.
// Their other Prepares come late. They tell what was there, so that their homes are prepared.
func (c *cluster) crossing(tb testing.TB, first, second *pb.TxnRequest) (one, two *later[*pb.TxnResponse]) {
	tb.Helper()
	c.place(shardA, c.nodes[2])
	c.script(func(k call, n int) interference {
		if k.name == "Write" && n == 1 && (k.from == 1 && k.shard == shardB || k.from == 2 && k.shard == shardA) {
			return interference{before: 20 * time.Millisecond}
		}
		return interference{}
	})
	for _, req := range []*pb.TxnRequest{first, second} {
		mvcc.EachPut(req, func(put *pb.PutRequest) { put.PrevKv = true })
	}
	one, two = c.node(1).txn(tb.Context(), first), c.node(2).txn(tb.Context(), second)
	time.Sleep(10 * time.Millisecond)
	if !c.held("a/x") || !c.held("b/x") {
		c.unshown("they do not hold a key each")
	}
	return one, two
}

// Two transactions hold a key each that the other wants. The younger gives way.
func TestYoungerTransactionGivesWay(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		began := time.Now()
		one, two := c.crossing(t, puts("a/x", "b/x"), puts("a/x", "b/x"))
		for _, txn := range []*later[*pb.TxnResponse]{one, two} {
			if _, err := txn.wait(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > soon {
			t.Errorf("both took %v", took)
		}
	})
}

// Two transactions hold a key each, and on either shard a command waits for that and for one that the other
// transaction is for. The transactions don't wait for the commands, which would be for ever.
func TestPreparesPassWaitingCommands(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		began := time.Now()
		one, two := c.crossing(t, puts("a/x", "b/y"), puts("a/y", "b/x"))
		waiting := []*later[*pb.TxnResponse]{
			one, two, c.node(3).txn(t.Context(), puts("a/x", "a/y")), c.node(3).txn(t.Context(), puts("b/x", "b/y")),
		}
		for _, txn := range waiting {
			if _, err := txn.wait(); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > soon {
			t.Errorf("all took %v", took)
		}
	})
}

// A lease's time passes while a transaction holds its key, so that it does not end. Who renews
// it then has it.
func TestLeaseThatCouldNotEndIsRenewed(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		p := c.node(2)
		p.grant(t, id, 1)
		if err := p.attach(t, "a/x", id); err != nil {
			t.Fatal(err)
		}
		c.delayStep(shardA, 2, 2300*time.Millisecond)
		req := putBoth("1")
		req.Success[0].GetRequestPut().IgnoreLease = true
		txn := c.node(1).txn(t.Context(), req)
		time.Sleep(2 * time.Second)
		if !c.held("a/x") {
			c.unshown("it is settled")
		}
		resp, err := p.router.LeaseRenew(t.Context(), id)
		if err != nil || resp.TTL != 1 {
			t.Fatalf("a lease that has not ended is renewed: %v, %v", resp, err)
		}
		renewed := time.Now()
		if _, err := txn.wait(); err != nil {
			t.Fatal(err)
		}
		for time.Since(renewed) < 800*time.Millisecond {
			if found, _ := p.read(t, "a/x", ""); found["a/x"] == nil {
				t.Fatalf("its key went %v after the renewal", time.Since(renewed))
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}
