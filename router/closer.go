package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/shard"
)

// closeInterval is the shortest time between two rounds of promises. All who need one
// in between share the next.
const closeInterval = 2 * time.Millisecond

// closer has the leaders of shards promise revisions that somebody waits for in the
// shards' stores: those of watches over several shards, of which one is idle. Its
// goroutine runs only while there is something to ask for.
type closer struct {
	r      *Router
	ctx    context.Context //nolint:containedctx // lives as long as the router
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// wants are the revisions asked for, by shard; protected by mu.
	wants map[*shard.Data]int64
	// running and closed are protected by mu.
	running, closed bool
}

func newCloser(r *Router) *closer {
	c := &closer{r: r, wants: make(map[*shard.Data]int64)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// want asks for a promise of all keys of d up to rev, a revision that was issued. The
// store of d tells when it has it.
func (c *closer) want(d *shard.Data, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.wants[d] = max(c.wants[d], rev)
	if !c.running {
		c.running = true
		c.wg.Add(1)
		go c.run()
	}
}

// run asks until nobody wants anything. What can't be had is asked for again.
func (c *closer) run() {
	defer c.wg.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-c.ctx.Done():
		}
		c.mu.Lock()
		wants := c.wants
		c.wants = make(map[*shard.Data]int64)
		if c.closed || len(wants) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		var round sync.WaitGroup
		for d, rev := range wants {
			round.Go(func() { c.ask(d, rev) })
		}
		pause.Reset(closeInterval)
		round.Wait()
	}
}

// ask asks once, within the time of one attempt.
func (c *closer) ask(d *shard.Data, rev int64) {
	ctx, cancel := context.WithTimeout(c.ctx, closeAttempt)
	defer cancel()
	err := c.r.promised(ctx, d, rev, nil)
	if err != nil && !errors.Is(err, shard.ErrStopped) {
		c.want(d, rev)
	}
}

// closeAttempt bounds a promise, so that a shard without a leader does not keep the
// others from theirs for long.
const closeAttempt = time.Second

// close ends the asking.
func (c *closer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
}
