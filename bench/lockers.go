package main

import (
	"context"
	"fmt"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// locker is one client's handle of a lock.
type locker interface {
	// Lock waits until the client holds the lock.
	Lock(ctx context.Context) error
	// Unlock gives it up. The client holds it.
	Unlock(ctx context.Context) error
}

// locker returns the handle that client i has of a lock. Its session, or its connection,
// ends with ctx.
func (o options) locker(ctx context.Context, i int, c *clientv3.Client, name string) (locker, error) {
	endpoint := o.endpoints[i%len(o.endpoints)]
	switch o.store {
	case "redis":
		return newRedisLock(ctx, endpoint, name)
	case "zookeeper":
		return newZooLock(ctx, endpoint, name)
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl), concurrency.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return concurrency.NewMutex(s, name), nil
}

// stores are the protocols that locks can be taken with; all other work needs etcd's.
var stores = []string{"etcd", "redis", "zookeeper"}

// dialStore opens a connection that ends with ctx.
func dialStore(ctx context.Context, endpoint string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return c, nil
}

// within does something with a connection until ctx ends.
func within(ctx context.Context, c net.Conn, do func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := do()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
