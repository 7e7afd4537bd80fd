package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
)

// counting has nodes 2 and 3 put keys on the shards of node 1 while disturb runs, and
// demands that no put fails and each applied once.
func counting(t *testing.T, disturb func(c *cluster)) {
	t.Helper()
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		var done atomic.Bool
		pause := unlessShort(10*time.Millisecond, 40*time.Millisecond)
		puts := make(map[string]int)
		var writers []*later[int]
		var names []string
		for i := range 12 {
			p, key := c.node(2+uint64(i%2)), fmt.Sprintf("%c/%d", "abcd"[i%4], i)
			names = append(names, key)
			writers = append(writers, meanwhile(func() (int, error) {
				n := 0
				for ; !done.Load(); n++ {
					if _, err := p.putting(t.Context(), key, strconv.Itoa(n)).wait(); err != nil {
						return n, err
					}
					time.Sleep(pause)
				}
				return n, nil
			}))
		}
		time.Sleep(200 * time.Millisecond)
		disturb(c)
		time.Sleep(2 * time.Second)
		done.Store(true)
		for i, w := range writers {
			n, err := w.wait()
			if err != nil {
				t.Errorf("a put of %s failed: %v", names[i], err)
			}
			puts[names[i]] = n
		}
		found, _ := c.node(2).read(t, "a", "e")
		for key, n := range puts {
			if n < 10 {
				c.unshown("%d puts of %s", n, key)
			}
			if v := found[key].GetVersion(); v != int64(n) {
				t.Errorf("%d puts of %s were acknowledged, %d applied", n, key, v)
			}
		}
	})
}

// A leader dies with commands of other nodes. Their clients wait, and hear no error.
func TestDyingLeaderCostsAPause(t *testing.T) {
	counting(t, func(c *cluster) {
		if err := c.nodes[0].die(false, nil); err != nil {
			c.tb.Fatal(err)
		}
	})
}

// A leader is cut off with commands of other nodes in its hands, and answers none of
// them for as long as it lasts.
func TestLeaderCutOffCostsAPause(t *testing.T) {
	counting(t, func(c *cluster) {
		c.net.sever(link{1, 2}, link{1, 3}, link{2, 1}, link{3, 1})
		time.Sleep(time.Second)
		c.net.heal()
	})
}

// The leader's answers are lost. What a node's own replica has applied is answered all
// the same.
func TestLostAnswersAreNotMissed(t *testing.T) {
	counting(t, func(c *cluster) {
		c.setInterfere(func(k call) interference { return interference{forget: k.name == "Write"} })
		time.Sleep(500 * time.Millisecond)
		c.setInterfere(func(call) interference { return interference{} })
	})
}

// Leaderships are handed over under writes: each at the first offer, soon.
func TestHandOverUnderWrites(t *testing.T) {
	counting(t, func(c *cluster) {
		for id, d := range c.node(1).shards {
			ctx, cancel := context.WithTimeout(c.tb.Context(), electionTicks*tick)
			err := d.Replica().HandOver(ctx, 2, func(context.Context) (uint64, error) {
				return c.node(2).shards[id].Replica().Applied(), nil
			})
			cancel()
			if err != nil {
				c.tb.Errorf("shard %d was not handed over: %v", id, err)
			}
		}
	})
}

// A hand-over lasts until the new leader serves: when it is over, the next shard can be
// handed over, and the system shard last, with no client waiting for this one.
func TestHandOverWaitsUntilTheOtherServes(t *testing.T) {
	bubble(t, func(c *cluster) {
		t, from, to := c.tb, c.node(1).shards[shardA].Replica(), c.node(2).shards[shardA].Replica()
		release := c.drop(shardA, acknowledgements)
		over := meanwhile(func() (served bool, err error) {
			err = from.HandOver(t.Context(), 2, func(context.Context) (uint64, error) { return to.Applied(), nil })
			return to.Serving() != 0, err
		})
		for from.Leader().ReplicaID != 2 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(electionTicks / 2 * tick)
		release()
		if served, err := over.wait(); err != nil || !served {
			t.Errorf("handed over with %v, and the new leader serves: %v", err, served)
		}
	})
}

// countedLeaders counts how often the leader of a shard is looked up.
type countedLeaders struct {
	router.Leaders
	asked atomic.Int64
}

func (l *countedLeaders) Leader(shardID uint64) router.Leader {
	l.asked.Add(1)
	return l.Leaders.Leader(shardID)
}

// A call that finds no leader waits until there is one: many that asked again and again
// would hold up the election.
func TestCallsWaitForALeader(t *testing.T) {
	bubble(t, func(c *cluster) {
		t, p := c.tb, c.node(2)
		leaders := &countedLeaders{Leaders: p.leaders()}
		r := router.New(router.Config{
			System: p.cluster, Order: oracle{p}, UserStore: p.cluster, Leaders: leaders, Shards: p.shards, Timeout: callTimeout,
		})
		defer r.Close()
		c.net.sever(around(2)...)
		for p.shards[shardA].Replica().Leader().ReplicaID != 0 {
			time.Sleep(time.Millisecond)
		}
		put := meanwhile(func() (*pb.PutResponse, error) {
			return r.Put(t.Context(), &pb.PutRequest{Key: []byte("a/1")})
		})
		time.Sleep(200 * time.Millisecond)
		if asked := leaders.asked.Load(); asked > 5 {
			t.Errorf("one put looked for a leader %d times while there was none", asked)
		}
		c.net.heal()
		if _, err := put.wait(); err != nil {
			t.Error(err)
		}
	})
}

// A call that reaches a leader before it serves waits there.
func TestCallsWaitUntilTheLeaderServes(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		release := c.drop(shardA, acknowledgements)
		if err := c.node(1).shards[shardA].Replica().Transfer(2); err != nil {
			t.Fatal(err)
		}
		for c.node(3).shards[shardA].Replica().Leader().ReplicaID != 2 {
			time.Sleep(time.Millisecond)
		}
		var writes calls
		c.setInterfere(func(k call) interference {
			if k.name == "Write" && k.shard == shardA {
				writes.next()
			}
			return interference{}
		})
		put := c.node(3).putting(t.Context(), "a/1", "v")
		time.Sleep(50 * time.Millisecond)
		if n := writes.made(); n != 1 {
			t.Errorf("one put was sent %d times to a leader that does not serve yet", n)
		}
		release()
		if _, err := put.wait(); err != nil {
			t.Error(err)
		}
		if n := writes.made(); n != 1 {
			t.Errorf("one put was sent %d times", n)
		}
	})
}

// A node is out of Raft's reach, and answers calls all the same. It is offered a leadership
// once a second. The shard is served on: nothing is held up for one that can't take
// over.
func TestOffersToANodeOutOfReach(t *testing.T) {
	bubble(t, func(c *cluster) {
		t, from := c.tb, c.node(1).shards[shardA].Replica()
		c.net.deafen(around(2)...)
		time.Sleep(electionTicks * tick)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		offers := meanwhile(func() (failed int, _ error) {
			for ; ctx.Err() == nil; failed++ {
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				err := from.HandOver(attempt, 2, func(context.Context) (uint64, error) { return c.node(2).shards[shardA].Replica().Applied(), nil })
				cancel()
				if err == nil {
					return failed, errors.New("the leadership was handed over")
				}
				pause(ctx, tick)
			}
			return failed, nil
		})
		longest := time.Duration(0)
		for range 100 {
			began := time.Now()
			c.node(3).put(t, "a/x", "v")
			longest = max(longest, time.Since(began))
			time.Sleep(tick)
		}
		cancel()
		if failed, err := offers.wait(); err != nil || failed < 10 {
			t.Errorf("%d offers failed, %v", failed, err)
		}
		if longest > electionTicks*tick {
			t.Errorf("a put took %v", longest)
		}
	})
}
