package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/latchkey-db/latchkey/placement"
)

// chaos is what is done to a cluster while clients use it. Pauses are drawn up to twice
// the ones given; 0 is never.
type chaos struct {
	transfers, campaigns, cuts, deaths time.Duration
	// speeds is how often other replicas are slow to apply, and stalls the chance, in
	// thousandths, that a goroutine stands still between two steps of a rule.
	speeds time.Duration
	stalls int
}

// shards returns the ids of all shards.
func (c *cluster) shards() []uint64 {
	ids := []uint64{placement.SystemShard}
	for i := range len(c.options.splits) + 1 {
		ids = append(ids, placement.FirstDataShard+uint64(i))
	}
	return ids
}

// every calls fn now and then until stop is closed.
func every(rnd *rand.Rand, mean time.Duration, stop <-chan struct{}, fn func()) {
	if mean == 0 {
		return
	}
	for {
		select {
		case <-time.After(time.Duration(rnd.Int64N(int64(2*mean))) + time.Microsecond):
		case <-stop:
			return
		}
		fn()
	}
}

// wreak does its worst to the workload's cluster until the workload is stopped.
func (ch chaos) wreak(w *workload) {
	c := w.c
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(c.options.seed, 10+n)) }
	w.wg.Go(func() {
		rnd := source(1)
		ids := c.shards()
		every(rnd, ch.transfers, w.stop, func() {
			id := ids[rnd.IntN(len(ids))]
			if p := c.leads(id); p != nil {
				if id == placement.SystemShard && rnd.IntN(2) == 0 {
					ctx, cancel := context.WithTimeout(c.ctx, time.Duration(rnd.IntN(3))*tick)
					resume := p.cluster.Release(ctx)
					cancel()
					defer resume()
				}
				p.unnamed.Store(rnd.IntN(8) == 0)
				// A refused transfer is one that does not happen.
				_ = p.replica(id).Transfer(1 + (p.node.id+rnd.Uint64N(nodes-1))%nodes)
			}
		})
	})
	w.wg.Go(func() { ch.stand(w, source(4)) })
	if ch.speeds > 0 || ch.stalls > 0 {
		s := &randomStalls{chance: ch.stalls, rnd: source(5)}
		c.setStall(s.stall)
		w.wg.Go(func() {
			ids := c.shards()
			every(source(6), ch.speeds, w.stop, func() { s.shuffle(ids) })
		})
	}
	w.wg.Go(func() {
		rnd := source(2)
		every(rnd, ch.cuts, w.stop, func() {
			cut := around(1 + rnd.Uint64N(nodes))
			if rnd.IntN(2) == 0 {
				rnd.Shuffle(len(cut), func(i, j int) { cut[i], cut[j] = cut[j], cut[i] })
				cut = cut[:1+rnd.IntN(3)]
			}
			c.cutFor(rnd, cut)
		})
	})
	w.wg.Go(func() {
		rnd := source(3)
		every(rnd, ch.deaths, w.stop, func() {
			n := c.nodes[rnd.IntN(nodes)]
			if err := n.die(rnd.IntN(4) > 0, rnd); err != nil {
				w.tb.Error(err)
			}
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			if err := n.restart(c.ctx); err != nil {
				w.tb.Error(err)
			}
		})
	})
}

// stand has any replica stand for election, as if the leader were gone.
func (ch chaos) stand(w *workload, rnd *rand.Rand) {
	ids := w.c.shards()
	every(rnd, ch.campaigns, w.stop, func() {
		id := ids[rnd.IntN(len(ids))]
		if p := w.c.nodes[rnd.IntN(nodes)].running(); p != nil {
			r := p.replica(id)
			r.Campaign(r.Leader().ReplicaID)
		}
	})
}

// terms adds up the terms of all shards: each fail-over raises it.
func (c *cluster) terms() (sum uint64) {
	for _, id := range c.shards() {
		newest := uint64(0)
		for _, n := range c.all() {
			if p := n.running(); p != nil {
				newest = max(newest, p.replica(id).Leader().Term)
			}
		}
		sum += newest
	}
	return sum
}

// cutFor cuts links, or makes them deaf, for a while.
func (c *cluster) cutFor(rnd *rand.Rand, cut []link) {
	if rnd.IntN(3) == 0 {
		c.net.deafen(cut...)
	} else {
		c.net.sever(cut...)
	}
	time.Sleep(time.Duration(20+rnd.IntN(600)) * time.Millisecond)
	c.net.heal()
}
