package sim

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// eightShards are the splits of tests whose members change.
var eightShards = []string{"a/2", "b", "b/2", "c", "c/2", "d", "d/2"}

// Members join, are promoted, die, come back with their disks, without them, and with old ones, and are removed, while nodes are
// cut off and leaders change.
func TestMembers(t *testing.T) {
	first := seed(t)
	length := unlessShort(6*time.Second, 3*time.Second)
	for round := range uint64(sized(1, 40)) {
		runMembers(t, options{seed: first + round, splits: eightShards, snapshotEntries: 400, tick: 50 * time.Millisecond, members: 1 + int((first+round)%3)},
			faults{lose: 5, repeat: 10, reorder: 10, late: 20 * time.Millisecond, loseCall: 5, loseAnswer: 5, slow: 60},
			chaos{transfers: 300 * time.Millisecond, campaigns: 2 * time.Second, cuts: 2 * time.Second, deaths: 3 * time.Second}, 4, length)
	}
}

// runMembers lets clients use a cluster whose members change while it is being broken, and checks everything.
func runMembers(t *testing.T, o options, f faults, ch chaos, clients int, length time.Duration) {
	t.Helper()
	t.Logf("seed %d, %d nodes at first", o.seed, o.members)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, o)
		defer c.close()
		w := newWorkload(t, c)
		c.net.setFaults(f)
		w.start(clients)
		ch.wreakMembers(w)
		w.wg.Go(func() { every(c.rnd, 2*time.Second, w.stop, func() { w.compact(c.rnd) }) })
		op := &operator{w: w, c: c, rnd: rand.New(rand.NewPCG(o.seed, 20))}
		w.wg.Go(func() { op.run(200 * time.Millisecond) })
		time.Sleep(length)
		w.end()
		w.calm()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.wg.Wait()
		}()
		c.eventually("all that has begun ends", func() bool {
			op.stopForgotten()
			return closed(ended)
		})
		op.finish()
		w.verify(w.settle())
		t.Logf("added %d, promoted %d, removed %d, lost %d, wiped %d, resurrected %d", op.added.Load(), op.promoted, op.removed, op.losses, op.wiped, op.resurrected)
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// finish has all nodes run whose disks are there, removes the one whose disks are not, and waits until the members are those
// of the record.
func (o *operator) finish() {
	ctx, cancel := context.WithTimeout(o.c.ctx, time.Minute)
	defer cancel()
	for {
		for _, n := range o.c.all() {
			n.mu.Lock()
			runs := n.opened != nil
			n.mu.Unlock()
			if !runs {
				o.w.wg.Go(func() { o.c.revive(n) })
			}
		}
		time.Sleep(200 * time.Millisecond)
		if p := o.c.any(o.rnd); p != nil && o.settled(ctx, p) {
			return
		}
		if ctx.Err() != nil {
			o.w.tb.Fatalf("the members do not settle: %s", o.c.membersSaid())
		}
	}
}

// settled removes what can't come back, and reports whether the members are those of the record and run.
func (o *operator) settled(ctx context.Context, p *process) bool {
	state := p.cluster.State()
	for _, n := range state.SortedNodes() {
		switch {
		case n.Instance == "" || o.lost != nil && n.ID == o.lost.id:
			o.remove(p, n.ID)
			return false
		case o.c.at(n.ID) == nil:
			return false
		}
	}
	return len(o.c.alive()) == len(state.Nodes) && p.settledMembers(ctx)
}
