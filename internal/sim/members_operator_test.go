package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/system"
)

const (
	// mostMembers is how many members a cluster of the tests has at the most.
	mostMembers = 5
	// leastVoters is how many are left when disks are lost.
	leastVoters = 3
)

// operator changes the members of a workload's cluster, at random.
type operator struct {
	w   *workload
	c   *cluster
	rnd *rand.Rand
	// stale are nodes made of copies of disks, of nodes that were members then.
	stale []*node
	// stop ends the start of each of the cluster's strays, in their order; protected by c.mu.
	stop []context.CancelFunc
	// lost is the node whose disks are gone and that is yet to be removed.
	lost *node
	// counts of what was done.
	added                                         atomic.Int64
	removed, promoted, losses, wiped, resurrected int
}

// run changes members until the workload is stopped, and then until all is settled.
func (o *operator) run(mean time.Duration) {
	every(o.rnd, mean, o.w.stop, func() {
		p := o.c.any(o.rnd)
		if p == nil {
			return
		}
		switch n := o.rnd.IntN(20); {
		case o.lost != nil && n < 12:
			o.remove(p, o.lost.id)
		case n < 9:
			o.add(p)
		case n < 11:
			o.promote(p)
		case n < 14:
			o.removeAny(p)
		case n < 16:
			o.lose(p)
		case n < 18:
			o.copyDisks()
		default:
			o.resurrect()
		}
	})
}

func (o *operator) patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(o.c.ctx, 3*time.Second)
}

// add takes a member in and starts its node, or starts that of one that was taken in before.
func (o *operator) add(p *process) {
	ctx, cancel := o.patience()
	defer cancel()
	state := p.cluster.State()
	for _, n := range state.SortedNodes() {
		if n.Instance == "" && !n.Leaving {
			o.join(n.PeerURLs, address("disks", o.rnd.Uint64()))
			return
		}
	}
	if len(state.Nodes) >= mostMembers {
		return
	}
	urls := []string{address("peer", o.rnd.Uint64())}
	if _, err := p.cluster.AddMember(ctx, urls, o.rnd.IntN(3) == 0, state.Cluster.Members); err != nil {
		return
	}
	if o.rnd.IntN(6) > 0 {
		o.join(urls, address("disks", o.rnd.Uint64()))
	}
}

// join starts a node with empty disks as one that joins, as soon as a member lets it. It goes on while other members
// change.
func (o *operator) join(urls []string, instance string) {
	random := o.rnd.Uint64()
	o.w.wg.Go(func() {
		n := o.c.admit(random, urls, instance)
		if n == nil {
			return
		}
		o.added.Add(1)
		if err := n.restart(o.c.ctx); err != nil && n.refused() == nil && o.c.ctx.Err() == nil && !errors.Is(err, errCut) {
			o.w.tb.Logf("node %d did not come to serve: %v", n.id, err)
		}
	})
}

// caughtUp reports whether a node answers and has applied about as much as another.
func (p *process) caughtUp(ctx context.Context, node uint64) bool {
	if node == p.node.id {
		return true
	}
	for _, r := range p.replicas() {
		index, err := p.applied(ctx, node, r.ShardID())
		if err != nil || !raft.CaughtUp(index, r.Applied()) {
			return false
		}
	}
	return true
}

// promote has a learner vote.
func (o *operator) promote(p *process) {
	ctx, cancel := o.patience()
	defer cancel()
	state := p.cluster.State()
	for _, n := range state.SortedNodes() {
		if n.Learner && !n.Leaving && n.Instance != "" && p.caughtUp(ctx, n.ID) {
			if p.cluster.PromoteMember(ctx, n.ID, state.Cluster.Members) == nil {
				o.promoted++
			}
		}
	}
}

// removeAny removes some member.
func (o *operator) removeAny(p *process) {
	members := p.cluster.State().SortedNodes()
	o.remove(p, members[o.rnd.IntN(len(members))].ID)
}

// remove removes a member, if a majority of the other voters is there and has caught up.
func (o *operator) remove(p *process, id uint64) {
	ctx, cancel := o.patience()
	defer cancel()
	if _, err := p.cluster.Members(ctx, true); err != nil {
		return
	}
	state := p.cluster.State()
	m, known := state.Nodes[id]
	if !known {
		o.gone(state)
		return
	}
	all, live := 0, 0
	for _, n := range state.SortedNodes() {
		if n.Learner || n.ID == id {
			continue
		}
		all++
		if !n.Leaving && p.caughtUp(ctx, n.ID) {
			live++
		}
	}
	if m.Leaving || !m.Learner && live <= all/2 {
		return
	}
	if p.cluster.RemoveMember(ctx, id, state.Cluster.Members) == nil {
		o.removed++
	}
	// It is carried out while other things go on, or before.
	for range 200 * o.rnd.IntN(2) {
		if state = p.cluster.State(); state.Removed[id].ID != 0 || !pause(ctx, 10*time.Millisecond) {
			break
		}
	}
	o.gone(state)
}

// gone notes that the node whose disks were lost has been removed.
func (o *operator) gone(state *system.State) {
	if o.lost != nil && state.Removed[o.lost.id].ID != 0 {
		o.lost = nil
	}
}

// lose takes the disks of a node away, where that leaves a majority, and has another process come with empty ones.
func (o *operator) lose(p *process) {
	ctx, cancel := o.patience()
	defer cancel()
	if _, err := p.cluster.Members(ctx, true); err != nil || o.lost != nil {
		return
	}
	state := p.cluster.State()
	if len(state.Voters()) < leastVoters || !p.settledMembers(ctx) || state != p.cluster.State() {
		return
	}
	victims := slices.DeleteFunc(o.c.all(), func(n *node) bool { return state.Nodes[n.id].ID == 0 })
	if len(victims) == 0 {
		return
	}
	n := victims[o.rnd.IntN(len(victims))]
	if err := o.c.lose(n); err != nil {
		o.w.tb.Error(err)
	}
	o.lost = n
	o.losses++
	if o.rnd.IntN(2) == 0 {
		o.wiped++
		wiped := newNode(o.c, n.id, n.replica)
		wiped.told, wiped.urls, wiped.instance = n.told, n.urls, address("disks", o.rnd.Uint64())
		o.stray(wiped)
	}
}

// stray starts a node that the others must not let in.
func (o *operator) stray(n *node) {
	ctx, stop := context.WithCancel(o.c.ctx)
	o.c.mu.Lock()
	o.c.strays = append(o.c.strays, n)
	o.stop = append(o.stop, stop)
	o.c.mu.Unlock()
	o.w.wg.Go(func() {
		err := n.restart(ctx)
		if err == nil {
			o.w.tb.Errorf("node %d serves with disks %q", n.id, n.instance)
		}
		if n.refused() == nil && ctx.Err() == nil {
			o.w.tb.Errorf("node %d ends by itself: %v", n.id, err)
		}
	})
}

// stopForgotten stops the strays that nobody is left to send away: whoever they know is no member any more. They wait for a
// majority of those, for ever.
func (o *operator) stopForgotten() {
	members := slices.DeleteFunc(o.c.all(), func(n *node) bool { return n.refused() != nil })
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	for i, stray := range o.c.strays {
		stray.mu.Lock()
		p := stray.opened
		stray.mu.Unlock()
		if p == nil {
			continue
		}
		known := p.known()
		if !slices.ContainsFunc(members, func(n *node) bool { return !n.lost && n.id != stray.id && slices.Contains(known, n.id) }) {
			o.stop[i]()
		}
	}
}

// copyDisks keeps a copy of the disks of a node that has died, and starts it again.
func (o *operator) copyDisks() {
	members := slices.DeleteFunc(o.c.all(), func(n *node) bool { return n.running() == nil })
	if len(members) == 0 || len(o.stale) > 0 || len(members[0].running().Voters()) < leastVoters {
		return
	}
	n := members[o.rnd.IntN(len(members))]
	if err := n.die(false, o.rnd); err != nil {
		o.w.tb.Error(err)
	}
	old, err := n.copied()
	if err != nil {
		o.w.tb.Error(err)
		return
	}
	o.stale = append(o.stale, old)
	o.c.revive(n)
}

// resurrect starts an old copy of the disks of a node that was removed meanwhile.
func (o *operator) resurrect() {
	p := o.c.any(o.rnd)
	if p == nil || len(o.stale) == 0 || p.cluster.State().Removed[o.stale[0].id].ID == 0 {
		return
	}
	o.resurrected++
	o.stray(o.stale[0])
	o.stale = nil
}

// wreakMembers does its worst to a cluster whose members change until the workload is stopped.
func (ch chaos) wreakMembers(w *workload) {
	c := w.c
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(c.options.seed, 10+n)) }
	ids := c.shards()
	w.wg.Go(func() {
		rnd := source(1)
		every(rnd, ch.transfers, w.stop, func() {
			id := ids[rnd.IntN(len(ids))]
			if p := c.leads(id); p != nil {
				to := p.cluster.State().SortedNodes()
				// A refused transfer is one that does not happen.
				_ = p.replica(id).Transfer(p.ReplicaOf(id, to[rnd.IntN(len(to))].ID))
			}
		})
	})
	w.wg.Go(func() {
		rnd := source(4)
		every(rnd, ch.campaigns, w.stop, func() {
			if p := c.any(rnd); p != nil {
				r := p.replica(ids[rnd.IntN(len(ids))])
				r.Campaign(r.Leader().ReplicaID)
			}
		})
	})
	w.wg.Go(func() {
		rnd := source(2)
		every(rnd, ch.cuts, w.stop, func() {
			all := c.all()
			cut := c.linksOf(all[rnd.IntN(len(all))].id)
			if rnd.IntN(2) == 0 && len(cut) > 0 {
				rnd.Shuffle(len(cut), func(i, j int) { cut[i], cut[j] = cut[j], cut[i] })
				cut = cut[:1+rnd.IntN(len(cut))]
			}
			c.cutFor(rnd, cut)
		})
	})
	w.wg.Go(func() {
		rnd := source(3)
		every(rnd, ch.deaths, w.stop, func() {
			all := c.all()
			n := all[rnd.IntN(len(all))]
			if n.running() == nil {
				return
			}
			if err := n.die(rnd.IntN(4) > 0, rnd); err != nil {
				w.tb.Error(err)
			}
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			c.revive(n)
		})
	})
}

// linksOf returns the links to and from a node.
func (c *cluster) linksOf(id uint64) []link {
	var links []link
	for _, n := range c.all() {
		if n.id != id {
			links = append(links, link{id, n.id}, link{n.id, id})
		}
	}
	return links
}
