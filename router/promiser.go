package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/shard"
)

// closeInterval is the shortest time between two promises of a shard. All who need one in
// between share the next.
const closeInterval = 2 * time.Millisecond

// promiser has the leaders of shards promise revisions that somebody waits for in the
// shards' stores: those of watches over several shards, of which one is idle. What is
// wanted of all the shards that another node leads goes there in one call. A goroutine runs
// only while there is something to ask.
type promiser struct {
	r *Router
	// work has room for one signal that there is more to ask.
	work chan struct{}

	mu sync.Mutex
	// wants are what is asked for by shard, and running says that a goroutine sees to them;
	// protected by mu.
	wants   map[*shard.Data]*want
	running bool
	// merged counts the pieces that watchers of several shards have in each; protected by mu.
	merged map[*shard.Data]int
}

// want is what is asked of one shard. It is protected by the promiser's mu.
type want struct {
	rev int64
	// asked is when it was asked for last, and asking says that the answer is not there yet.
	asked  time.Time
	asking bool
}

// asked is one call: the shards that one node leads and the revision that they are to
// promise.
type asked struct {
	rev    int64
	shards []*shard.Data
}

func newPromiser(r *Router) *promiser {
	return &promiser{r: r, work: make(chan struct{}, 1), wants: make(map[*shard.Data]*want), merged: make(map[*shard.Data]int)}
}

// watch adds to the pieces in a shard, or takes from them.
func (c *promiser) watch(d *shard.Data, pieces int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.merged[d] += pieces; c.merged[d] == 0 {
		delete(c.merged, d)
	}
}

// Numbered has the shards of which there are pieces promise a revision that another one with
// pieces is about to write, so that they do so while it is being written.
func (r *Router) Numbered(shardID uint64, rev int64) { r.promiser.ahead(r.shards[shardID], rev) }

func (c *promiser) ahead(writes *shard.Data, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.merged[writes] == 0 {
		return
	}
	for d := range c.merged {
		if d != writes && d.Store().Resolved() < rev {
			c.wantLocked(d, rev)
		}
	}
}

// want asks for a promise of all keys of d up to rev, a revision that was issued. The
// store of d tells when it has it.
func (c *promiser) want(d *shard.Data, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wantLocked(d, rev)
}

// wantLocked is want; c.mu must be held.
func (c *promiser) wantLocked(d *shard.Data, rev int64) {
	if !c.running && c.r.running.run(c.run) != nil {
		return // nobody waits any more
	}
	c.running = true
	w := c.wants[d]
	if w == nil {
		w = &want{}
		c.wants[d] = w
		c.wake()
	}
	w.rev = max(w.rev, rev)
}

func (c *promiser) wake() {
	select {
	case c.work <- struct{}{}:
	default:
	}
}

// run asks until the stores have what is wanted. What can't be had is asked for again.
func (c *promiser) run(ctx context.Context) {
	pause := time.NewTimer(closeInterval)
	defer pause.Stop()
	for {
		select {
		case <-c.work:
		case <-pause.C:
		case <-ctx.Done():
		}
		calls, done := c.due(ctx)
		if done {
			return
		}
		for node, a := range calls {
			if c.r.running.run(func(ctx context.Context) { c.ask(ctx, node, a) }) != nil {
				return
			}
		}
		pause.Reset(closeInterval)
	}
}

// due returns what is to be asked of each node now; 0 stands for this one and for those
// that are not known. done says that nothing is wanted any more.
func (c *promiser) due(ctx context.Context) (calls map[uint64]*asked, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		clear(c.wants)
	}
	now := time.Now()
	calls = make(map[uint64]*asked)
	for d, w := range c.wants {
		switch {
		case w.asking:
		case d.Store().Resolved() >= w.rev:
			delete(c.wants, d)
		case now.Sub(w.asked) >= closeInterval:
			w.asking, w.asked = true, now
			node := c.r.at(d)
			a := calls[node]
			if a == nil {
				a = &asked{}
				calls[node] = a
			}
			a.rev = max(a.rev, w.rev)
			a.shards = append(a.shards, d)
		}
	}
	if len(c.wants) == 0 {
		c.running = false
	}
	return calls, !c.running
}

// at returns the other node that leads a shard, 0 where there is none.
func (r *Router) at(d *shard.Data) uint64 {
	if r.elsewhere(d) == nil {
		return 0
	}
	return r.leaders.At(d.Replica().ShardID())
}

// ask asks one node once, and each shard by itself that it did not promise in time.
func (c *promiser) ask(ctx context.Context, node uint64, a *asked) {
	if node == 0 {
		c.here(ctx, a)
		return
	}
	promised := c.call(ctx, node, a)
	for _, d := range a.shards {
		index, ok := promised[d.Replica().ShardID()]
		if ok && d.Replica().Applied() >= index {
			d.Store().Resolve(a.rev)
			c.answered(d, nil)
			continue
		}
		finish := func(ctx context.Context) {
			if !ok {
				c.answered(d, c.r.promised(ctx, d, a.rev, nil))
				return
			}
			ctx, cancel := c.r.bounded(ctx)
			defer cancel()
			err := d.Replica().AwaitApplied(ctx, index)
			if err == nil {
				d.Store().Resolve(a.rev)
			}
			c.answered(d, err)
		}
		if c.r.running.run(finish) != nil {
			return
		}
	}
}

// here has the shards promise that this node leads, which tell their stores. Where it leads
// no more, or there is no leader, the shard is asked by itself.
func (c *promiser) here(ctx context.Context, a *asked) {
	ctx, cancel := c.r.bounded(ctx)
	defer cancel()
	shard.PromiseEach(ctx, a.rev, a.shards, func(d *shard.Data, _ uint64, err error) {
		if err == nil {
			c.answered(d, nil)
			return
		}
		alone := func(ctx context.Context) { c.answered(d, c.r.promised(ctx, d, a.rev, nil)) }
		if errors.Is(err, raft.ErrStopped) || c.r.running.run(alone) != nil {
			c.answered(d, err)
		}
	})
}

// call makes one call for several shards. It is given up when one of them has a later
// leader, since a node that stands still answers nothing.
func (c *promiser) call(ctx context.Context, node uint64, a *asked) map[uint64]uint64 {
	ctx, cancel := c.r.bounded(ctx)
	defer cancel()
	ids := make([]uint64, 0, len(a.shards))
	var unhook []func() bool
	defer func() {
		for _, stop := range unhook {
			stop()
		}
	}()
	for _, d := range a.shards {
		ids = append(ids, d.Replica().ShardID())
		_, over := d.Replica().LeaderOfTerm()
		unhook = append(unhook, context.AfterFunc(over, cancel))
	}
	promised, err := c.r.leaders.Promise(ctx, node, a.rev, ids)
	if err != nil {
		return nil // each is asked by itself
	}
	return promised
}

// answered notes that a shard may be asked again, unless it has stopped.
func (c *promiser) answered(d *shard.Data, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.wants[d]; w != nil {
		w.asking = false
		if errors.Is(err, raft.ErrStopped) || d.Store().Resolved() >= w.rev {
			delete(c.wants, d)
		}
	}
	c.wake()
}
