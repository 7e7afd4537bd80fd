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

// works are the kinds of work by name.
var works = map[string]func(context.Context, options, []*clientv3.Client, *meter) error{
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

func put(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	name, err := naming()
	if err != nil {
		return err
	}
	v := value(o.valueSize)
	return each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
		for n := 0; ctx.Err() == nil; n++ {
			start := time.Now()
			if _, err := c.Put(ctx, name(i, fmt.Sprintf("%d/%d", i, n%1000)), v); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	})
}

func get(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	name, err := naming()
	if err != nil {
		return err
	}
	v := value(o.valueSize)
	err = each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
		for k := i; k < o.keys; k += o.clients {
			if _, err := c.Put(ctx, name(k, strconv.Itoa(k)), v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(ctx, o, conns, func(ctx context.Context, _ int, c *clientv3.Client) error {
		for ctx.Err() == nil {
			k := mrand.IntN(o.keys)
			start := time.Now()
			if _, err := c.Get(ctx, name(k, strconv.Itoa(k))); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	})
}

// lockCycles locks and unlocks the lock that of names for a client.
func lockCycles(ctx context.Context, o options, conns []*clientv3.Client, m *meter, of func(client int) string) error {
	return each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
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

func lock(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	name, err := naming()
	if err != nil {
		return err
	}
	return lockCycles(ctx, o, conns, m, func(client int) string { return name(client, strconv.Itoa(client)) })
}

func contend(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	name, err := naming()
	if err != nil {
		return err
	}
	return lockCycles(ctx, o, conns, m, func(int) string { return name(0, "one") })
}

func keepalive(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	return each(ctx, o, conns, func(ctx context.Context, _ int, c *clientv3.Client) error {
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
	})
}

// fanout measures with the writer's clock: it sends the time in the value.
func fanout(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	name, err := naming()
	if err != nil {
		return err
	}
	key := name(0, "key")
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
	err = each(ctx, o, conns, func(ctx context.Context, _ int, c *clientv3.Client) error {
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
	if werr := <-failed; err == nil && ctx.Err() == nil {
		err = werr
	}
	return err
}
