package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/shard"
)

const (
	// closeInterval is the shortest time between two promises of a shard. All who need
	// one in between share the next.
	closeInterval = 2 * time.Millisecond
	// closeAttempt bounds a promise: what is wanted may have grown meanwhile.
	closeAttempt = time.Second
)

// closer has the leaders of shards promise revisions that somebody waits for in the
// shards' stores: those of watches over several shards, of which one is idle. A
// goroutine for a shard runs only while there is something to ask of it.
type closer struct {
	r      *Router
	ctx    context.Context //nolint:containedctx // lives as long as the router
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// wants are the revisions asked for, of the shards that have a goroutine; protected
	// by mu.
	wants map[*shard.Data]int64
	// closed is protected by mu.
	closed bool
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
	wanted, running := c.wants[d]
	c.wants[d] = max(wanted, rev)
	if !running {
		c.wg.Add(1)
		go c.run(d)
	}
}

// run asks until the store of d has what is wanted. What can't be had is asked for
// again.
func (c *closer) run(d *shard.Data) {
	defer c.wg.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for stopped := false; ; {
		select {
		case <-pause.C:
		case <-c.ctx.Done():
		}
		c.mu.Lock()
		rev := c.wants[d]
		if c.closed || stopped || d.Store().Resolved() >= rev {
			delete(c.wants, d)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		pause.Reset(closeInterval)
		stopped = errors.Is(c.ask(d, rev), shard.ErrStopped)
	}
}

// ask asks once.
func (c *closer) ask(d *shard.Data, rev int64) error {
	ctx, cancel := context.WithTimeout(c.ctx, closeAttempt)
	defer cancel()
	return c.r.promised(ctx, d, rev, nil)
}

// close ends the asking.
func (c *closer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
}
