// Package share lets calls that want about the same share an attempt to get it.
package share

import (
	"context"
	"sync"
)

// maxAttempts bounds the attempts of a share that run side by side. A second one lets
// callers that come while the first is on its way go sooner than with the one after.
const maxAttempts = 2

// Share joins the questions of callers. Each gets the answer to a question that holds its
// own, of an attempt that began after it came. The fields are set before the first call.
type Share[Q, A any] struct {
	// Join returns a question whose answer answers both.
	Join func(Q, Q) Q
	// Ask makes an attempt. ctx is none of the callers'.
	Ask func(ctx context.Context, q Q) (A, error)
	// Go runs fn in a goroutine and gives it the context of the attempts, or says why it
	// does not.
	Go func(fn func(ctx context.Context)) error

	mu sync.Mutex
	// running counts the attempts under way, next is the one that callers join until it
	// begins; protected by mu.
	running int
	next    *attempt[Q, A]
}

// Same is Join where all ask for the same.
func Same[Q any](_, q Q) Q { return q }

// attempt is one attempt and what came of it.
type attempt[Q, A any] struct {
	question Q
	done     chan struct{}
	// answer and err are valid once done is closed.
	answer A
	err    error
}

// Get joins the next attempt. Errors are those of Ask and Go, and the cause of ctx's end.
func (s *Share[Q, A]) Get(ctx context.Context, q Q) (a A, err error) {
	if ctx.Err() != nil {
		return a, context.Cause(ctx)
	}
	mine, err := s.enter(q)
	if err != nil {
		return a, err
	}
	select {
	case <-mine.done:
		return mine.answer, mine.err
	case <-ctx.Done():
		return a, context.Cause(ctx)
	}
}

// enter adds a question to the next attempt, and begins it if that may be.
func (s *Share[Q, A]) enter(q Q) (mine *attempt[Q, A], err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &attempt[Q, A]{question: q, done: make(chan struct{})}
	} else {
		s.next.question = s.Join(s.next.question, q)
	}
	mine = s.next
	if s.running < maxAttempts {
		if err := s.Go(s.run); err != nil {
			return nil, err
		}
		s.running++
	}
	return mine, nil
}

// run makes attempts until nobody waits.
func (s *Share[Q, A]) run(ctx context.Context) {
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
		current.answer, current.err = s.Ask(ctx, current.question)
		close(current.done)
	}
}
