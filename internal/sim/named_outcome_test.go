package sim

import (
	"testing"
	"time"
)

// A Prepare comes again in a later term of its shard, after the transaction was aborted there.
func TestPrepareInALaterTerm(t *testing.T) {
	coordinated(t, func(c *cluster) {
		a := c.attempt(1)
		a.abort(shardB)
		c.place(shardB, c.nodes[0])
		a.refused(shardB)
	})
}

// What has ended can't be told any more from what never was, when its node says that it goes
// on with nothing so old. No Prepare of it is taken all the same.
func TestPrepareBelowTheMark(t *testing.T) {
	coordinated(t, func(c *cluster) {
		first, second := c.attempt(1), c.attempt(2)
		first.abort(shardB)
		second.prepared(shardB)
		second.abort(shardB)
		first.refused(shardB)
	})
}

// A node that begins an attempt says which of its attempts are still open: a Prepare of an older one that is
// late is taken.
func TestMarkIsTheLowestOpenAttempt(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		var aborts calls
		c.script(func(k call, n int) interference {
			if k.step(shardB) && n == 1 {
				return interference{before: 50 * time.Millisecond}
			}
			if k.name == "Abort" {
				aborts.next()
			}
			return interference{}
		})
		txn := c.node(1).txn(t.Context(), putBoth("1"))
		time.Sleep(10 * time.Millisecond)
		if !c.held("a/x") || c.held("b/x") {
			c.unshown("it is not prepared at the home alone")
		}
		if _, err := c.node(1).router.Txn(t.Context(), puts("a/y", "b/y")); err != nil {
			t.Fatal(err)
		}
		resp, err := txn.wait()
		if err != nil {
			t.Fatal(err)
		}
		c.wholly(t, resp.Header.Revision)
		if n := aborts.made(); n > 0 {
			t.Errorf("%d aborts: the first attempt was refused", n)
		}
	})
}

// A Prepare comes again after its transaction has been committed and forgotten: it holds nothing. The home still
// tells that it committed.
func TestPrepareAfterTheEnd(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		a := c.attempt(1)
		a.prepared(shardA, shardB)
		rev, err := a.decide()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.wholly(t, rev)
		a.refused(shardA)
		a.refused(shardB)
		if got := a.abort(shardA); got != rev {
			t.Errorf("the home says that it ended at %d, expected %d", got, rev)
		}
	})
}

// A participant can't be told to finish for longer than a call takes. The home goes on, over changes of its leader: what it
// forgot would be aborted there once its node goes on with nothing so old.
func TestFinishIsRepeatedUntilItApplied(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		began := time.Now()
		c.script(func(k call, _ int) interference {
			return interference{refuse: k.name == "Finish" && time.Since(began) < callTimeout+2*time.Second}
		})
		resp, err := c.node(1).router.Txn(t.Context(), putBoth("1"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(callTimeout + time.Second)
		if _, err := c.node(1).router.Txn(t.Context(), puts("a/0", "b/0")); err != nil {
			t.Fatal(err)
		}
		c.place(shardA, c.nodes[0])
		c.place(shardA, c.nodes[1])
		if !c.held("b/x") {
			c.unshown("it is finished")
		}
		time.Sleep(2 * time.Second)
		c.wholly(t, resp.Header.Revision)
	})
}
