package mixed

import (
	"context"
	"errors"
	"sync"
	"time"
)

// way is one of the ways to take locks.
type way struct {
	name string
	// modes says that it knows more than exclusive locks.
	modes bool
	// open makes a client that takes locks at some nodes, the first of which it prefers.
	open func(ctx context.Context, e *env, nodes []string) (party, error)
}

// ways are all of them.
var ways = []way{
	{"mutex", false, openMutex},
	{"lock call", false, openLockCall},
	{"etcdctl", false, openEtcdctl},
	{"http", true, openHTTP},
	{"grpc", true, openGRPC},
	{"client", true, openClient},
}

// party is a client of locks, with what session it needs. One goroutine uses it, but die may be
// called beside.
type party interface {
	// acquire asks for a lock and waits until ctx ends. errNotGranted says that the lock was not
	// given in time, and that the party has no place in the queue any more, as far as it knows;
	// after another error it is of no use.
	acquire(ctx context.Context, lock string, m mode) (grant, error)
	// still has the party stand still, as a process that is stopped: it renews nothing any more.
	still()
	// die ends the party, as a crash would: it gives nothing back. A party may die while it waits.
	die()
	// leave ends the party in order.
	leave(ctx context.Context) error
}

// grant is a lock that a party was told to have.
type grant interface {
	token() int64
	// told is when the party was told.
	told() time.Time
	// sure is up to when the party certainly has the lock, if it gives nothing back: what
	// leases last for, counted from when they were asked for.
	sure() time.Time
	// renew makes sure later, if all is well.
	renew(ctx context.Context) error
	release(ctx context.Context) error
}

var (
	errNotGranted = errors.New("not granted in time")
	// errGone says that a lease or a lock is not there any more.
	errGone = errors.New("it is gone")
	errDied = errors.New("the party has died")
)

// ttl is that of all leases. Servers have a shortest one.
const ttl = 2 * time.Second

// renewal bounds a call that renews.
const renewal = 2 * time.Second

// lease is a lease, or a lock's time, of which the moment is known up to which it certainly
// lasts.
type lease struct {
	e    *env
	name string
	// ask renews it and returns up to when it lasts, for a request sent at a moment. errGone
	// says that it is no more.
	ask func(ctx context.Context, sent time.Time) (time.Time, error)

	mu sync.Mutex
	// until only grows. Protected by mu.
	until time.Time
}

func (l *lease) sure() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// renew renews the lease. One that is gone before it can have ended breaks a promise.
func (l *lease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewal)
	defer cancel()
	until, err := l.ask(ctx, time.Now())
	switch {
	case errors.Is(err, errGone):
		l.gone("was renewed")
	case err == nil:
		l.mu.Lock()
		defer l.mu.Unlock()
		if until.After(l.until) {
			l.until = until
		}
	}
	return err
}

// gone takes note of a refusal that says that the lease is no more.
func (l *lease) gone(when string) {
	if now := time.Now(); now.Before(l.sure()) {
		l.e.history.wrong("%s was gone at %s when it %s, and was to last until %s", l.name, clock(now), when, clock(l.sure()))
	}
}

// keep renews the lease three times in its time until ctx ends.
func (l *lease) keep(ctx context.Context) {
	t := time.NewTicker(ttl / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if errors.Is(l.renew(ctx), errGone) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
