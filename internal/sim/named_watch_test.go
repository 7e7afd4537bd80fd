package sim

import (
	"context"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/placement"
)

// An event of a watch over all shards waits for one call to the node that leads the others,
// not for one a shard; what several watches wait for is asked once.
func TestIdleShardsAreAskedTogether(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		var alone, together calls
		c.setInterfere(func(k call) interference {
			switch k.name {
			case "Promise":
				alone.next()
			case "Promises":
				together.next()
			}
			return interference{}
		})
		var watchers []*watcher
		for range 5 {
			watchers = append(watchers, c.watchAll(c.node(3)))
		}
		const puts = 20
		for i := range puts {
			c.node(1).put(t, "a/x", "v")
			for _, w := range watchers {
				w.heard(t, i+1)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if alone.made() > 0 || together.made() < puts || together.made() > 2*puts {
			t.Errorf("%d puts took %d calls for several shards and %d for one", puts, together.made(), alone.made())
		}
	})
}

// What a watch will wait for is promised while the event is being written.
func TestPromisedWhileWritten(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		before := c.node(3).put(t, "a/x", "1")
		all := c.watchAll(c.node(1))
		release := c.drop(shardB, entries)
		put := c.node(1).putting(t.Context(), "b/x", "v")
		time.Sleep(20 * time.Millisecond)
		for _, id := range []uint64{shardA, shardC} {
			if rev := c.node(1).shards[id].Store().Resolved(); rev <= before {
				t.Errorf("shard %d has resolved %d, and nothing above %d", id, rev, before)
			}
		}
		if n := len(all.events()); n > 0 {
			t.Errorf("%d events of what is not written", n)
		}
		release()
		if _, err := put.wait(); err != nil {
			t.Fatal(err)
		}
		all.inOrder(t, 1)
	})
}

// A shard that can't promise in time holds up the watches that wait for it, and not those
// that wait for others of the same leader.
func TestSlowPromiseHoldsUpNoOther(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		all := c.watchAll(c.node(3))
		other := c.watchSpan(c.node(3), "c", "e")
		// The leader of one shard waits for a number that does not come.
		c.setInterfere(func(k call) interference {
			if k.name == "Ask" && k.count == 1 && k.from == 1 {
				return interference{before: time.Minute}
			}
			return interference{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stuck := c.node(1).putting(ctx, "b/x", "v")
		time.Sleep(5 * time.Millisecond)
		c.setInterfere(func(call) interference { return interference{} })
		for i := range 5 {
			began := time.Now()
			c.node(1).put(t, "c/x", "v")
			other.heard(t, i+1)
			if took := time.Since(began); took > 30*time.Millisecond {
				t.Errorf("event %d took %v", i, took)
			}
		}
		if n := len(all.events()); n > 0 {
			c.unshown("a watch of all shards heard %d events", n)
		}
		if _, err := stuck.wait(); err != nil {
			t.Errorf("put: %v", err)
		}
		all.inOrder(t, 6)
	})
}
