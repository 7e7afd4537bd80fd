package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// atOnce is how many of thousands of clients begin at a time: servers refuse too many writes.
const atOnce = 256

// waiters has everybody wait before it is measured, so that what the server holds in memory then
// is for them.
func waiters(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	if o.clients < 2 {
		return nil, errors.New("one client waits for nobody")
	}
	naming, err := naming()
	if err != nil {
		return nil, err
	}
	name := naming(0, "lock")
	lockers := make([]locker, o.clients)
	g, opening := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range lockers {
		g.Go(func() (err error) {
			if opening.Err() == nil {
				lockers[i], err = o.locker(ctx, i, conns[i%len(conns)], name)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	l := line{begin: time.Now(), done: make(chan error, o.clients)}
	if err := lockers[0].Lock(ctx); err != nil {
		return nil, err
	}
	for begun := 1; begun < len(lockers); {
		for end := min(begun+atOnce, len(lockers)); begun < end; begun++ {
			mu := lockers[begun]
			go func() { l.done <- l.turn(ctx, mu) }()
		}
		if err := l.await(ctx, conns[0], name, begun); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, m *meter) error {
		l.m.Store(m)
		if err := l.pass(ctx, lockers[0]); err != nil {
			return err
		}
		for range len(lockers) - 1 {
			select {
			case err := <-l.done:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}, nil
}

// line is clients that wait for one lock.
type line struct {
	begin time.Time
	// released is when the last holder began to release the lock, after begin.
	released atomic.Int64
	m        atomic.Pointer[meter]
	// done yields how the turn of each was.
	done chan error
}

// turn waits for the lock and passes it on.
func (l *line) turn(ctx context.Context, mu locker) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	m := l.m.Load()
	if m == nil {
		return errors.New("two clients hold a lock")
	}
	m.add(l.begin.Add(time.Duration(l.released.Load())))
	return l.pass(ctx, mu)
}

func (l *line) pass(ctx context.Context, mu locker) error {
	l.released.Store(int64(time.Since(l.begin)))
	return mu.Unlock(ctx)
}

// await waits until so many stand in the queue, or one of them has failed.
func (l *line) await(ctx context.Context, c *clientv3.Client, name string, n int) error {
	for {
		resp, err := c.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count >= int64(n) {
			return err
		}
		select {
		case err := <-l.done:
			return fmt.Errorf("a waiter has ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// held leaves the locks to sessions that outlive the command.
func held(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	sessions, err := forEach(ctx, o, conns, func(i int, c *clientv3.Client) (func(string) locker, error) {
		return o.session(ctx, i, c, longTTL)
	})
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, _ *clientv3.Client, m *meter) error {
		for k := i; k < o.keys; k += o.clients {
			start := time.Now()
			if err := sessions[i](name(k, strconv.Itoa(k))).Lock(ctx); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// list lists all locks of bench. Of etcd, which knows of no locks, it reads as many keys.
func list(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	const prefix = "bench/"
	page := func(ctx context.Context, i int, c *clientv3.Client) error {
		switch o.store {
		case "grpc":
			_, err := latchkeyv1.NewLocksClient(c.ActiveConnection()).List(ctx, &latchkeyv1.ListRequest{Prefix: prefix, Limit: int32(o.limit)})
			return err
		case "http":
			return call(ctx, o.endpoint(i), fmt.Sprintf("locks?prefix=%s&limit=%d", prefix, o.limit), nil, &struct{}{})
		default:
			_, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(o.limit))
			return err
		}
	}
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for ctx.Err() == nil {
			start := time.Now()
			if err := page(ctx, i, c); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}
