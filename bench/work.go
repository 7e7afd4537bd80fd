package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// prepare does what a kind of work needs beforehand, and returns the work.
type prepare func(context.Context, options, []*clientv3.Client) (work, error)

// work is done until ctx ends.
type work func(ctx context.Context, m *meter) error

// works are the kinds of work by name.
var works = map[string]prepare{
	"put":       put,
	"get":       get,
	"bulk":      bulk,
	"txn":       txn,
	"range":     scan,
	"lock":      lock,
	"handoff":   handoff,
	"waiters":   waiters,
	"held":      held,
	"list":      list,
	"grant":     grant,
	"leases":    leases,
	"keepalive": keepalive,
	"renew":     renew,
	"fanout":    fanout,
	"events":    events,
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
	return func(i int, rest string) string { return fmt.Sprintf("bench/%02x/%x/%s", place(i), run, rest) }, nil
}

// places is how many places there are, and place returns the one of which naming speaks.
const places = 256

func place(i int) byte { return byte(i * 157) }

// apart returns a number whose place is that of i, moved on by the j-th of n equal parts of all
// places: with as many shards, or a multiple, n such keys lie on n shards.
func apart(i, j, n int) int {
	const inverse = 181 // 157 * 181 = 1 mod 256
	return (int(place(i)) + j*places/n) * inverse
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
			if o.among > 0 && (n+i)%o.among == 0 {
				if err := putApart(ctx, o, c, name, i, n); err != nil {
					return err
				}
				continue
			}
			start := time.Now()
			if _, err := c.Put(ctx, name(i, fmt.Sprintf("%d/%d", i, n%1000)), v); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// putApart writes keys of a client in one transaction, each in another of -over parts.
func putApart(ctx context.Context, o options, c *clientv3.Client, name func(int, string) string, i, n int) error {
	v := value(o.valueSize)
	ops := make([]clientv3.Op, o.over)
	for j := range ops {
		ops[j] = clientv3.OpPut(name(apart(i, j, o.over), fmt.Sprintf("apart/%d/%d", i, n%1000)), v)
	}
	_, err := c.Txn(ctx).Then(ops...).Commit()
	return err
}

func txn(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for n := 0; ctx.Err() == nil; n++ {
			start := time.Now()
			if err := putApart(ctx, o, c, name, i, n); err != nil {
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
