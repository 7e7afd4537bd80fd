package client

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/fence"
)

// Grant is a lock that a session has. Its methods may run side by side.
type Grant struct {
	s     *Session
	name  string
	key   string
	token fence.Token
	// held ends with the session's life, or before it.
	held held
	// free lets the session ask for the lock again.
	free func()
}

// held is the context of a grant. Like a lifetime it looks at the clock itself.
type held struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	life            *lifetime
}

// Err returns nil while the lock is certainly held, as far as the client was told.
func (h held) Err() error {
	_ = h.life.Err() // ends this one too if it is time
	return h.Context.Err()
}

// Done is closed when the lock may be another's.
func (h held) Done() <-chan struct{} {
	_ = h.Err()
	return h.Context.Done()
}

// newGrant returns the grant of a key, which is watched from then on.
func (s *Session) newGrant(name, key string, token, rev int64, free func()) *Grant {
	ctx, cancel := context.WithCancelCause(s.life)
	g := &Grant{s: s, name: name, key: key, token: fence.Token(token), held: held{ctx, cancel, s.life}, free: free}
	s.start(func() { g.watch(rev) })
	return g
}

// Name is the lock's.
func (g *Grant) Name() string { return g.name }

// Token is the fencing token: larger than that of every holder before.
func (g *Grant) Token() fence.Token { return g.token }

// Key is the key that holds the lock.
func (g *Grant) Key() string { return g.key }

// Context is cancelled before the lease can have ended, and when the client hears that the
// lock was taken away. It has no deadline: renewals move it.
func (g *Grant) Context() context.Context { return g.held }

// Lost returns why the lock is not held any more, nil while it is.
func (g *Grant) Lost() error {
	if g.held.Err() == nil {
		return nil
	}
	return context.Cause(g.held.Context)
}

// Release gives the lock back, and ends its context before. Where it fails the lock may be
// held until the session ends, and Release may be called again; repeated, it does nothing.
func (g *Grant) Release(ctx context.Context) error {
	g.held.cancel(ErrReleased)
	if _, err := g.ifThere(ctx).Then(clientv3.OpDelete(g.key)).Commit(); err != nil {
		return err
	}
	g.free()
	return nil
}

// ifThere begins a transaction that does something if the key is still the one of the grant.
func (g *Grant) ifThere(ctx context.Context) clientv3.Txn {
	return g.s.c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(g.key), "=", int64(g.token)))
}

// watch ends the grant when its key goes.
func (g *Grant) watch(rev int64) {
	for {
		changes := g.s.c.etcd.Watch(g.held, g.key, clientv3.WithRev(rev+1), clientv3.WithFilterPut())
		for c := range changes {
			if len(c.Events) > 0 {
				g.taken()
				return
			}
		}
		if g.held.Err() != nil {
			return
		}
		// It ended by a compaction, behind which the key is looked up.
		resp, err := g.s.c.etcd.Get(g.held, g.key)
		switch {
		case err != nil:
			if pause(g.held) != nil {
				return
			}
		case len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != int64(g.token):
			g.taken()
			return
		default:
			rev = resp.Header.Revision
		}
	}
}

// taken ends a grant whose key is gone.
func (g *Grant) taken() {
	g.held.cancel(ErrTaken)
	g.free()
}

// pause waits for a moment between two attempts, or until ctx ends, and returns why it did.
func pause(ctx context.Context) error {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
