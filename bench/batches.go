package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ownKeys is how many keys a client of bulk writes before it begins anew.
const ownKeys = 100_000

func bulk(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	v := value(o.valueSize)
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for n := 0; ctx.Err() == nil; n += o.batch {
			ops := make([]clientv3.Op, o.batch)
			for j := range ops {
				ops[j] = clientv3.OpPut(name(i, fmt.Sprintf("%d/%d", i, (n+j)%ownKeys)), v)
			}
			start := time.Now()
			if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// fillers is how many clients write what a range reads.
const fillers = 8

// fill writes o.keys keys below a prefix, and returns the store's revision after that.
func fill(ctx context.Context, o options, conns []*clientv3.Client, prefix string) (revision int64, err error) {
	v := value(o.valueSize)
	o.clients = fillers
	write := each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, _ *meter) error {
		for k := i * o.batch; k < o.keys; k += fillers * o.batch {
			var ops []clientv3.Op
			for j := k; j < min(k+o.batch, o.keys); j++ {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%08d", prefix, j), v))
			}
			if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
		}
		return nil
	})
	if err := write(ctx, nil); err != nil {
		return 0, err
	}
	r, err := conns[0].Get(ctx, prefix)
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// scan writes the keys before, twice if it reads the past.
func scan(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	prefix := name(0, "")
	revision, err := fill(ctx, o, conns, prefix)
	if err != nil {
		return nil, err
	}
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(o.limit)}
	if o.past {
		if _, err := fill(ctx, o, conns, prefix); err != nil {
			return nil, err
		}
		opts = append(opts, clientv3.WithRev(revision))
	}
	want := o.keys
	if o.limit > 0 {
		want = min(want, int(o.limit))
	}
	return each(o, conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		for ctx.Err() == nil {
			start := time.Now()
			r, err := c.Get(ctx, prefix, opts...)
			if err != nil {
				return err
			}
			m.add(start)
			if len(r.Kvs) != want {
				return fmt.Errorf("range returned %d keys, want %d", len(r.Kvs), want)
			}
		}
		return nil
	}), nil
}
