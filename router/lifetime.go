package router

import (
	"context"
	"sync"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// lifetime is how long goroutines may run that nobody waits for.
type lifetime struct {
	ctx    context.Context //nolint:containedctx // it is what the lifetime is
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// over is protected by mu.
	over bool
}

func newLifetime() *lifetime {
	l := &lifetime{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// run starts fn, unless the lifetime is over.
func (l *lifetime) run(fn func(ctx context.Context)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return raft.ErrStopped
	}
	l.wg.Go(func() { fn(l.ctx) })
	return nil
}

// end ends what runs and waits for it.
func (l *lifetime) end() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.cancel(raft.ErrStopped)
	l.wg.Wait()
}
