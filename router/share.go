package router

import (
	"context"
	"sync"

	"github.com/latchkey-db/latchkey/shard"
)

// maxShared bounds the attempts of a share that run side by side. A second one lets
// callers that come while the first is on its way go sooner than with the one after.
const maxShared = 2

// share lets callers that want about the same of another node share an attempt to get it.
// Each gets the answer to a question that holds its own, of an attempt that began after
// it came.
type share[Q, A any] struct {
	// join returns a question whose answer answers both.
	join func(Q, Q) Q
	// ask makes an attempt. It ends when ctx, which is none of the callers', does.
	ask func(ctx context.Context, q Q) (A, error)

	mu sync.Mutex
	// running counts the attempts under way, next is the one that callers join until it
	// begins; protected by mu.
	running int
	next    *attempt[Q, A]
}

// attempt is one attempt and what came of it.
type attempt[Q, A any] struct {
	question Q
	done     chan struct{}
	// answer and err are valid once done is closed.
	answer A
	err    error
}

// get joins the next attempt. life ends the attempts.
func (s *share[Q, A]) get(ctx context.Context, life *lifetime, q Q) (a A, err error) {
	if ctx.Err() != nil {
		return a, context.Cause(ctx)
	}
	mine, ok := s.enter(life, q)
	if !ok {
		return a, shard.ErrStopped
	}
	select {
	case <-mine.done:
		return mine.answer, mine.err
	case <-ctx.Done():
		return a, context.Cause(ctx)
	}
}

// enter adds a question to the next attempt, and begins it if that may be. It reports
// whether there will be one.
func (s *share[Q, A]) enter(life *lifetime, q Q) (mine *attempt[Q, A], ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &attempt[Q, A]{question: q, done: make(chan struct{})}
	} else {
		s.next.question = s.join(s.next.question, q)
	}
	mine = s.next
	if s.running < maxShared {
		if !life.run(s.run) {
			return nil, false
		}
		s.running++
	}
	return mine, true
}

// run makes attempts until nobody waits.
func (s *share[Q, A]) run(ctx context.Context) {
	for {
		s.mu.Lock()
		current := s.next
		if current == nil {
			s.running--
			s.mu.Unlock()
			return
		}
		s.next = nil
		s.mu.Unlock()
		current.answer, current.err = s.ask(ctx, current.question)
		close(current.done)
	}
}

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
func (l *lifetime) run(fn func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.wg.Go(func() { fn(l.ctx) })
	}
	return !l.over
}

// end ends what runs and waits for it.
func (l *lifetime) end() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.cancel(shard.ErrStopped)
	l.wg.Wait()
}
