package main

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// mutex returns a client's handle of a lock, with a session of its own.
func mutex(ctx context.Context, c *clientv3.Client, name string) (*concurrency.Mutex, error) {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return concurrency.NewMutex(s, name), nil
}

func lock(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		mu, err := mutex(ctx, c, name(i, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			start := time.Now()
			if err := mu.Lock(ctx); err != nil {
				return err
			}
			if err := mu.Unlock(ctx); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// handoff measures with the clock of this process, which has all clients.
func handoff(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	// released is, for each lock, when its last holder began to unlock it, after begin.
	released := make([]atomic.Int64, o.locks)
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		l := i % o.locks
		mu, err := mutex(ctx, c, name(l, strconv.Itoa(l)))
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			if err := mu.Lock(ctx); err != nil {
				return err
			}
			if at := released[l].Load(); at > 0 {
				m.add(begin.Add(time.Duration(at)))
			}
			released[l].Store(int64(time.Since(begin)))
			if err := mu.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	}), nil
}
