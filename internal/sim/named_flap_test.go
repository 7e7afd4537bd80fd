package sim

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
)

// slowTick is the tick of a node with the default flags.
const slowTick = 100 * time.Millisecond

// A leader's messages come later and later, until the way there and back is longer than
// dragonboat waits for one read. The leader hears of its followers all the time, and so
// leads on; it proves it, late, and leases are kept.
func TestLeaderBehindSlowLinksIsProved(t *testing.T) {
	bubbleOf(t, options{seed: seed(t), splits: fourShards, tick: slowTick}, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		c.node(1).grant(t, id, 60)
		began, term := time.Now(), c.node(1).shards[shardA].Replica().Serving()
		c.net.setDecide(func(l link, _ bool, _ *raftpb.Message) fate {
			if l.from != 1 && l.to != 1 {
				return fate{}
			}
			return fate{delay: min(time.Since(began)/10, 1500*time.Millisecond)}
		})
		time.Sleep(20 * time.Second)
		for range 3 {
			kept, err := c.node(1).router.LeaseRenew(t.Context(), id)
			if err != nil || kept.TTL != 60 {
				t.Errorf("renewed: %v, %v", kept, err)
			}
		}
		if c.node(1).shards[shardA].Replica().Serving() != term {
			c.unshown("the leader was replaced")
		}
	})
}

// flap has what a node sends and what it is sent come 1.2 to 2.5 s late, for half of every
// second, but for calls.
func (c *cluster) flap(id uint64) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(c.options.seed, 9))
	c.net.setDecide(func(l link, _ bool, _ *raftpb.Message) fate {
		if l.from != id && l.to != id || time.Now().UnixMilli()%1000 >= 500 {
			return fate{}
		}
		mu.Lock()
		defer mu.Unlock()
		return fate{delay: time.Duration(1200+rnd.IntN(1300)) * time.Millisecond}
	})
}

// A node whose links come and go answers calls, and Raft now and then. It is no leader to
// hand shards to, and is one again when its links have been good for a while.
func TestFlappingNodeIsNotSteady(t *testing.T) {
	bubbleOf(t, options{seed: seed(t), splits: fourShards, tick: slowTick}, func(c *cluster) {
		t := c.tb
		c.placeAll(c.nodes[1])
		from := c.node(2).shards[shardA].Replica()
		time.Sleep(15 * time.Second)
		if !from.Steady(1) || !from.Steady(3) {
			t.Fatalf("with good links: node 1 steady %v, node 3 %v", from.Steady(1), from.Steady(3))
		}
		c.flap(1)
		time.Sleep(5 * time.Second)
		follows := 0
		for range 450 {
			time.Sleep(100 * time.Millisecond)
			if from.Steady(1) {
				t.Fatal("a node whose links come and go is steady")
			}
			if _, ok := from.Follows(1); ok {
				follows++
			}
		}
		if follows == 0 || !from.Steady(3) {
			c.unshown("node 1 followed %d times, node 3 is steady: %v", follows, from.Steady(3))
		}
		c.net.setDecide(nil)
		time.Sleep(15 * time.Second)
		if !from.Steady(1) {
			t.Error("a node whose links are good again is not steady")
		}
	})
}

// A node misses its leader again and again, for shorter than a call takes there and back. The
// call goes on meanwhile, since nobody else leads.
func TestCallsOutliveMomentsWithoutALeader(t *testing.T) {
	bubbleOf(t, options{seed: seed(t), splits: fourShards, tick: slowTick}, func(c *cluster) {
		t := c.tb
		c.placeAll(c.nodes[0])
		id := c.leaseAt(shardA)
		c.node(1).grant(t, id, 60)
		r := c.node(2).shards[shardA].Replica()
		term := r.Leader().Term
		c.net.setDecide(func(l link, _ bool, _ *raftpb.Message) fate {
			return fate{lose: l.to == 2 && time.Now().UnixMilli()%2500 >= 500}
		})
		c.setInterfere(func(k call) interference {
			if k.from != 2 || k.name != "Renew" {
				return interference{}
			}
			return interference{before: 2 * time.Second, after: 2 * time.Second}
		})
		for range 3 {
			_, until := r.LeaderUntil()
			kept, err := c.node(2).router.LeaseRenew(t.Context(), id)
			if err != nil || kept.TTL != 60 {
				t.Errorf("renewed: %v, %v", kept, err)
			}
			if until.Err() == nil {
				c.unshown("the leader was not missed")
			}
		}
		time.Sleep(2500 * time.Millisecond)
		if l := c.node(1).shards[shardA].Replica(); l.Serving() != term {
			c.unshown("term %d is served, %d before", l.Serving(), term)
		}
	})
}
