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
)

// closer has the leaders of shards promise revisions that somebody waits for in the
// shards' stores: those of watches over several shards, of which one is idle. A
// goroutine for a shard runs only while there is something to ask of it.
type closer struct {
	r *Router

	mu sync.Mutex
	// wants are the revisions asked for, of the shards that have a goroutine; protected
	// by mu.
	wants map[*shard.Data]int64
}

func newCloser(r *Router) *closer { return &closer{r: r, wants: make(map[*shard.Data]int64)} }

// want asks for a promise of all keys of d up to rev, a revision that was issued. The
// store of d tells when it has it.
func (c *closer) want(d *shard.Data, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted, running := c.wants[d]
	if !running && c.r.running.run(func(ctx context.Context) { c.run(ctx, d) }) != nil {
		return // nobody waits any more
	}
	c.wants[d] = max(wanted, rev)
}

// run asks until the store of d has what is wanted. What can't be had is asked for
// again.
func (c *closer) run(ctx context.Context, d *shard.Data) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for stopped := false; ; {
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		c.mu.Lock()
		rev := c.wants[d]
		if ctx.Err() != nil || stopped || d.Store().Resolved() >= rev {
			delete(c.wants, d)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		pause.Reset(closeInterval)
		stopped = errors.Is(c.r.promised(ctx, d, rev, nil), shard.ErrStopped)
	}
}
