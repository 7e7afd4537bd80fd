package main

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func lock(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	lockers, err := forEach(ctx, o, conns, func(i int, c *clientv3.Client) (locker, error) {
		return o.locker(ctx, i, c, name(i, strconv.Itoa(i)))
	})
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, _ *clientv3.Client, m *meter) error {
		mu := lockers[i]
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
func handoff(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	// released is, for each lock, when its last holder began to unlock it, after begin.
	released := make([]atomic.Int64, o.locks)
	held := make([]atomic.Bool, o.locks)
	lockers, err := forEach(ctx, o, conns, func(i int, c *clientv3.Client) (locker, error) {
		l := i % o.locks
		return o.locker(ctx, i, c, name(l, strconv.Itoa(l)))
	})
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, _ *clientv3.Client, m *meter) error {
		l, mu := i%o.locks, lockers[i]
		for ctx.Err() == nil {
			if err := mu.Lock(ctx); err != nil {
				return err
			}
			if at := released[l].Load(); at > 0 {
				m.add(begin.Add(time.Duration(at)))
			}
			if !held[l].CompareAndSwap(false, true) {
				return errors.New("two clients hold a lock")
			}
			held[l].Store(false)
			released[l].Store(int64(time.Since(begin)))
			if err := mu.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	}), nil
}
