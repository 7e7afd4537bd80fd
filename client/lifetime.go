package client

import (
	"context"
	"sync"
	"time"
)

// lifetime is a context that ends before a lease can have ended. It counts from when the
// renewal that was answered last was sent: the server counts from when that arrived, which was
// later.
//
// A process that was stopped past the end finds the context ended as soon as it looks at
// Err or Done, even before the timer has had its turn. Contexts that are derived from it end
// with the timer.
type lifetime struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	clock           clock

	mu sync.Mutex
	// until is when the lease may have ended, by the clock, and timer fires then. Protected
	// by mu.
	until time.Duration
	timer *time.Timer
}

// newLifetime returns one that lasts for a lease that was granted or renewed by a request
// sent at a time, with a time to live.
func newLifetime(c clock, sent, ttl time.Duration) *lifetime {
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &lifetime{Context: ctx, cancel: cancel, clock: c, until: sent + safe(ttl)}
	l.timer = time.AfterFunc(l.until-c(), l.check)
	return l
}

// marginParts is how many parts of a time to live there are, of which one is left out: the
// clocks of this process and of the server may run at different rates, by far less.
const marginParts = 20

// safe is how long a lease with a time to live certainly lasts.
func safe(ttl time.Duration) time.Duration { return ttl - ttl/marginParts }

// renewed takes note of a renewal that has been answered. It does not revive what has
// ended.
func (l *lifetime) renewed(sent, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Context.Err() != nil || l.clock() >= l.until {
		return
	}
	l.until = max(l.until, sent+safe(ttl))
	l.timer.Reset(l.until - l.clock())
}

// check ends the context if it is time.
func (l *lifetime) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.until - l.clock()
	if left <= 0 {
		l.cancel(ErrExpired)
		return
	}
	l.timer.Reset(left) // the clock has run on by less than the timer's
}

// end ends the context for a reason.
func (l *lifetime) end(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.cancel(cause)
}

// left returns for how long the lease certainly lasts, without another renewal.
func (l *lifetime) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until - l.clock()
}

// Err returns nil while the lease certainly lasts.
func (l *lifetime) Err() error {
	if l.left() <= 0 {
		l.end(ErrExpired)
	}
	return l.Context.Err()
}

// Done is closed when the lease may have ended.
func (l *lifetime) Done() <-chan struct{} {
	_ = l.Err() // closes it if it is time
	return l.Context.Done()
}
