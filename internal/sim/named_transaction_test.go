package sim

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/shard"
)

// A transaction meets an older one and begins anew. The message by which it gives up its first attempt
// is under way for so long that the second holds the same keys by then. It takes nothing away from that.
func TestAttemptsHaveIDsOfTheirOwn(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		older := c.attempt(1)
		older.prepared(shardA)
		c.script(func(k call, n int) interference {
			switch {
			case k.step(shardB) && n == 1:
				return interference{before: time.Minute}
			case k.step(shardA) && n == 3: // the decision
				return interference{before: 60 * time.Millisecond}
			case k.name == "Abort" && k.from == 1 && k.shard == shardA:
				return interference{before: 200 * time.Millisecond}
			case k.name == "Abort" && k.from == 1 && k.shard == shardB && n == 1:
				return interference{before: 40 * time.Millisecond}
			}
			return interference{}
		})
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(10 * time.Millisecond)
		older.abort(shardA)
		time.Sleep(20 * time.Millisecond)
		if !c.held("a/x") || !c.held("b/x") {
			c.unshown("the second attempt has not begun")
		}
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		c.wholly(t, resp.Header.Revision)
	})
}

// A transaction's number is asked for when all that it writes is held: whoever reads one of
// its keys before, and writes it, is before it.
func TestNumberIsAskedForBehindEveryPrepare(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.delayStep(shardB, 1, 30*time.Millisecond)
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(15 * time.Millisecond)
		if c.held("b/x") {
			c.unshown("it is prepared everywhere")
		}
		between := c.node(3).put(t, "b/x", "between")
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		found, _ := c.node(1).read(t, "a/x", "b/y")
		if rev := resp.Header.Revision; rev <= between || found["a/x"].GetModRevision() != rev || found["b/x"].GetModRevision() != rev {
			t.Errorf("the transaction is of %d, what was between of %d, and there is %v", rev, between, found)
		}
	})
}

// The home can't reach a coordinator that is merely slow, and aborts its transaction. The decision that
// comes late commits nothing, and the transaction is made anew.
func TestDecisionAfterTheAbort(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.delayStepOfUnreachable(shardA, 2, 1500*time.Millisecond)
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(50 * time.Millisecond)
		if !c.held("a/x") || !c.held("b/x") {
			c.unshown("it is not prepared")
		}
		time.Sleep(1200 * time.Millisecond)
		if c.held("a/x") || c.held("b/x") {
			c.unshown("it is still held")
		}
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		c.wholly(t, resp.Header.Revision)
	})
}

// A participant asks the home what became of a transaction whose coordinator is slow and can't be reached. What it hears
// is settled by a command of the home: a decision that comes then does nothing.
func TestQuestionSettlesATransaction(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		a := c.attempt(1)
		a.prepared(shardA, shardB)
		out, err := a.leader(shardA).Settled(t.Context(), a.id)
		if err != nil || out.Rev != 0 {
			t.Fatalf("settled as %v, %v", out, err)
		}
		if rev, err := a.decide(); !errors.Is(err, shard.ErrAborted) {
			t.Errorf("committed at %d, %v, after a participant had heard that it is aborted", rev, err)
		}
	})
}

// A transaction is aborted before its Prepare reaches the home, whose answer the coordinator
// takes for good otherwise: it would commit without the other participant.
func TestPrepareAfterTheAbort(t *testing.T) {
	coordinated(t, func(c *cluster) { c.abortedBeforeItsHome(putBoth("1")) })
}

// abortedBeforeItsHome makes a transaction over a/x, at its home, and b/x, whose first step at the home comes when it has been
// aborted.
func (c *cluster) abortedBeforeItsHome(req *pb.TxnRequest) {
	t := c.tb
	c.delayStepOfUnreachable(shardA, 1, 1500*time.Millisecond)
	txn := c.node(1).txn(t.Context(), req)
	time.Sleep(50 * time.Millisecond)
	if c.held("a/x") || !c.held("b/x") {
		c.unshown("it is not prepared at the participant alone")
	}
	time.Sleep(1200 * time.Millisecond)
	if c.held("b/x") {
		c.unshown("it is still held")
	}
	resp, err := txn.wait()
	if err != nil {
		t.Fatal(err)
	}
	c.wholly(t, resp.Header.Revision)
}

// A right is taken away, and that is acknowledged, while a transaction holds what it was checked
// for. It does not commit.
func TestRightTakenAwayBeforeTheDecision(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		p := c.node(1)
		p.enableUsers(t)
		p.change(t, &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r", Perm: &authpb.Permission{
			PermType: authpb.Permission_READWRITE, Key: []byte("b/"), RangeEnd: []byte("b0"),
		}}})
		c.delayStep(shardA, 2, 100*time.Millisecond)
		txn := p.txn(p.as(t, "u"), putBoth("1"))
		time.Sleep(20 * time.Millisecond)
		if !c.held("a/x") || !c.held("b/x") {
			c.unshown("it is not prepared")
		}
		p.change(t, &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{
			Role: "r", Key: []byte("b/"), RangeEnd: []byte("b0"),
		}})
		if resp, err := txn.wait(); !turnedAway(err) {
			t.Errorf("a transaction after the loss of a right it needs: %v, %v", resp, err)
		}
		root := p.as(t, "root")
		time.Sleep(time.Second)
		resp, err := p.router.Range(root, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c")})
		if err != nil || resp.Count > 0 {
			t.Errorf("%v, %v, expected no key", resp, err)
		}
	})
}

// The coordinator's replica of the home jumps over the decision, by a snapshot. Nobody can tell it whether it
// was applied: it is not made again, and not taken back.
func TestCoordinatorJumpsOverTheDecision(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.script(func(k call, n int) interference {
			switch {
			case k.step(shardA) && n == 2:
				return interference{before: 20 * time.Millisecond}
			case k.name == "Finish":
				return interference{before: time.Second}
			}
			return interference{}
		})
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(10 * time.Millisecond)
		if !c.held("a/x") || !c.held("b/x") {
			c.unshown("it is not prepared")
		}
		learn := c.lag(shardA, 1)
		time.Sleep(30 * time.Millisecond)
		for range 200 {
			c.node(2).put(t, "a/y", "y")
		}
		time.Sleep(2 * raft.LeadershipTick) // the log is cut
		learn()
		_, err := txn.wait()
		if c.net.begun() == 0 {
			c.unshown("there was no snapshot")
		}
		if !errors.Is(err, raft.ErrTimeout) {
			t.Errorf("%v, want the unknown outcome", err)
		}
		time.Sleep(time.Second)
		c.wholly(t, 0)
	})
}
