package sim

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/placement"
)

// counting has nodes 2 and 3 put keys on the shards of node 1 while disturb runs, and
// demands that no put fails and each applied once.
func counting(t *testing.T, disturb func(c *cluster)) {
	t.Helper()
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		var done atomic.Bool
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
					time.Sleep(10 * time.Millisecond)
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
				t.Fatalf("%d puts of %s; the run shows nothing", n, key)
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
