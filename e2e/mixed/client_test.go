package mixed

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/client"
	"github.com/latchkey-db/latchkey/e2e/faults"
)

// clientParty uses package client, which says itself for how long it has a lock.
type clientParty struct {
	e *env
	c *clientv3.Client
	s *client.Session
}

func openClient(ctx context.Context, e *env, nodes []string) (party, error) {
	c, err := faults.Dial(nodes...)
	if err != nil {
		return nil, err
	}
	s, err := client.New(c).Open(ctx, ttl)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &clientParty{e, c, s}, nil
}

func (p *clientParty) acquire(ctx context.Context, lock string, m mode) (grant, error) {
	var opts []client.Option
	if m.shared {
		opts = append(opts, client.Shared())
	}
	if m.of > 0 {
		opts = append(opts, client.Permits(m.permits, m.of))
	}
	g, err := p.s.Acquire(ctx, lock, opts...)
	at := time.Now()
	if err != nil {
		return nil, err
	}
	return &clientGrant{Grant: g, p: p, at: at, last: at}, nil
}

// clientGrant is a lock of package client.
type clientGrant struct {
	*client.Grant
	p  *clientParty
	at time.Time
	// last is the last moment up to which the lock was known to be held.
	last time.Time
}

func (g *clientGrant) token() int64    { return int64(g.Token()) }
func (g *clientGrant) told() time.Time { return g.at }

// sure is what the client says is left, while it says that it has the lock.
func (g *clientGrant) sure() time.Time {
	until := time.Now().Add(g.p.s.Left())
	switch lost := g.Lost(); {
	case lost == nil && until.After(g.last):
		g.last = until
	case errors.Is(lost, client.ErrTaken) && time.Now().Before(g.last):
		g.p.e.history.wrong("%s with token %d was taken away", g.Name(), g.Token())
	}
	return g.last
}

func (g *clientGrant) renew(context.Context) error { return nil } // it does by itself

func (g *clientGrant) release(ctx context.Context) error { return g.Release(ctx) }

// still cuts the client off: it can't be stopped without its process.
func (p *clientParty) still() { _ = p.c.Close() } // so that an error is no news

func (p *clientParty) die() { p.still() }

func (p *clientParty) leave(ctx context.Context) error {
	return errors.Join(p.s.Close(ctx), p.c.Close())
}
