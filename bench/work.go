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

// prefix keeps runs apart.
func prefix() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return fmt.Sprintf("bench/%x/", b), nil
}

func value(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return string(b)
}

func put(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	p, err := prefix()
	if err != nil {
		return err
	}
	v := value(o.valueSize)
	return each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
		for n := 0; ctx.Err() == nil; n++ {
			start := time.Now()
			if _, err := c.Put(ctx, fmt.Sprintf("%s%d/%d", p, i, n%1000), v); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	})
}

func get(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	p, err := prefix()
	if err != nil {
		return err
	}
	v := value(o.valueSize)
	err = each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
		for k := i; k < o.keys; k += o.clients {
			if _, err := c.Put(ctx, p+strconv.Itoa(k), v); err != nil {
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
			start := time.Now()
			if _, err := c.Get(ctx, p+strconv.Itoa(mrand.IntN(o.keys))); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	})
}

// lockCycles locks and unlocks the lock that name gives a client.
func lockCycles(ctx context.Context, o options, conns []*clientv3.Client, m *meter, name func(client int) string) error {
	return each(ctx, o, conns, func(ctx context.Context, i int, c *clientv3.Client) error {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
		if err != nil {
			return err
		}
		mu := concurrency.NewMutex(s, name(i))
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
	p, err := prefix()
	if err != nil {
		return err
	}
	return lockCycles(ctx, o, conns, m, func(client int) string { return p + strconv.Itoa(client) })
}

func contend(ctx context.Context, o options, conns []*clientv3.Client, m *meter) error {
	p, err := prefix()
	if err != nil {
		return err
	}
	return lockCycles(ctx, o, conns, m, func(int) string { return p + "one" })
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
	p, err := prefix()
	if err != nil {
		return err
	}
	key := p + "key"
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
