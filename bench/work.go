package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// prepare does what a kind of work needs beforehand, and returns the work.
type prepare func(context.Context, options, []*clientv3.Client) (work, error)

// work is done until ctx ends.
type work func(ctx context.Context, m *meter) error

// works are the kinds of work by name.
var works = map[string]prepare{
	"put":       put,
	"get":       get,
	"lock":      lock,
	"contend":   contend,
	"keepalive": keepalive,
	"fanout":    fanout,
}

func workNames() []string { return slices.Sorted(maps.Keys(works)) }

// naming returns what names the keys of a run: name(i, rest) lies in the i-th of 256
// places that are spread evenly over bench/00/ to bench/ff/, so that the keys of a
// cluster with splits there lie on all its shards. Runs are kept apart.
func naming() (name func(i int, rest string) string, err error) {
	var run [6]byte
	if _, err := rand.Read(run[:]); err != nil {
		return nil, err
	}
	return func(i int, rest string) string { return fmt.Sprintf("bench/%02x/%x/%s", byte(i*157), run, rest) }, nil
}

func value(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return string(b)
}

func put(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	v := value(o.valueSize)
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for n := 0; ctx.Err() == nil; n++ {
			start := time.Now()
			if _, err := c.Put(ctx, name(i, fmt.Sprintf("%d/%d", i, n%1000)), v); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// get writes the keys before.
func get(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	v := value(o.valueSize)
	write := each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, _ *meter) error {
		for k := i; k < o.keys; k += o.clients {
			if _, err := c.Put(ctx, name(k, strconv.Itoa(k)), v); err != nil {
				return err
			}
		}
		return nil
	})
	if err := write(ctx, nil); err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		for ctx.Err() == nil {
			k := mrand.IntN(o.keys)
			start := time.Now()
			if _, err := c.Get(ctx, name(k, strconv.Itoa(k))); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// lockCycles locks and unlocks the lock that of names for a client.
func lockCycles(o options, conns []*clientv3.Client, of func(client int) string) work {
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
		if err != nil {
			return err
		}
		mu := concurrency.NewMutex(s, of(i))
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
	})
}

func lock(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	return lockCycles(o, conns, func(client int) string { return name(client, strconv.Itoa(client)) }), nil
}

func contend(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	return lockCycles(o, conns, func(int) string { return name(0, "one") }), nil
}

func keepalive(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	return each(o, conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		l, err := c.Grant(ctx, 60)
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			start := time.Now()
			if _, err := c.KeepAliveOnce(ctx, l.ID); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// fanout measures with the writer's clock: it sends the time in the value.
func fanout(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, m *meter) error { return fan(ctx, o, conns, m, name(0, "key")) }, nil
}

func fan(ctx context.Context, o options, conns []*clientv3.Client, m *meter, key string) error {
	var ready sync.WaitGroup
	ready.Add(o.clients)
	begin := time.Now()
	writer := func() error {
		ready.Wait()
		for ctx.Err() == nil {
			if _, err := conns[0].Put(ctx, key, strconv.FormatInt(int64(time.Since(begin)), 10)); err != nil {
				return err
			}
		}
		return nil
	}
	failed := make(chan error, 1)
	go func() { failed <- writer() }()
	watch := each(o, conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		events := c.Watch(ctx, key, clientv3.WithCreatedNotify())
		for r := range events {
			if r.Created {
				ready.Done()
			}
			for _, e := range r.Events {
				sent, err := strconv.ParseInt(string(e.Kv.Value), 10, 64)
				if err != nil {
					return err
				}
				m.add(begin.Add(time.Duration(sent)))
			}
		}
		return nil
	})
	err := watch(ctx, m)
	if werr := <-failed; err == nil && ctx.Err() == nil {
		err = werr
	}
	return err
}
