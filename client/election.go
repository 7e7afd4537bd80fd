package client

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Campaign returns when the session leads an election, as those know it who use etcd's
// concurrency.Election. The grant is the leadership; Release resigns it.
func (s *Session) Campaign(ctx context.Context, election, value string) (*Grant, error) {
	return s.acquireBy(ctx, election, true, func(ctx context.Context) (place, error) {
		return s.lineAs(ctx, election, true, value)
	})
}

// Proclaim changes the value of a leader without another election. It returns the reason
// where the leadership is lost.
func (g *Grant) Proclaim(ctx context.Context, value string) error {
	resp, err := g.ifThere(ctx).Then(clientv3.OpPut(g.key, value, clientv3.WithLease(g.s.id))).Commit()
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		g.taken()
		return context.Cause(g.held.Context)
	}
	return nil
}
