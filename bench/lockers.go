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
	switch o.store {
	case "redis":
		return newRedisLock(ctx, o.endpoint(i), name)
	case "zookeeper":
		return newZooLock(ctx, o.endpoint(i), name)
	}
	lock, err := o.session(ctx, i, c, ttl)
	if err != nil {
		return nil, err
	}
	return lock(name), nil
}

// endpoint is the server that a client uses where it has a connection of its own.
func (o options) endpoint(i int) string { return o.endpoints[i%len(o.endpoints)] }

// session opens a session of client i, with a time to live in seconds, which is renewed until ctx ends.
// It returns what gives handles of its locks.
func (o options) session(ctx context.Context, i int, c *clientv3.Client, ttl int) (lock func(name string) locker, err error) {
	switch o.store {
	case "http":
		s, err := newHTTPSession(ctx, o.endpoint(i), ttl)
		if err != nil {
			return nil, err
		}
		return s.lock, nil
	case "grpc":
		s, err := newGRPCSession(ctx, c, ttl)
		if err != nil {
			return nil, err
		}
		return s.lock, nil
	case "client":
		s, err := newClientSession(ctx, c, ttl)
		if err != nil {
			return nil, err
		}
		return func(name string) locker { return &clientLock{session: s, name: name} }, nil
	default:
		s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl), concurrency.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		return func(name string) locker { return concurrency.NewMutex(s, name) }, nil
	}
}

// stores are the protocols that locks can be taken with; all other work needs etcd's. The
// lock API is spoken by HTTP, by gRPC, and by package client.
var stores = []string{"etcd", "http", "grpc", "client", "redis", "zookeeper"}

// ofOthers are those of servers that do not speak etcd's.
var ofOthers = []string{"redis", "zookeeper"}

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

// worksWith is the work that can be done with some stores; with others it is any.
var worksWith = map[string][]string{
	"http": ofLocks, "grpc": ofLocks, "client": ofLocks[:len(ofLocks)-1], "redis": ofLocks[:2], "zookeeper": ofLocks[:2],
}

// ofLocks is the work with locks: any store can do the first two, package client does not list.
var ofLocks = []string{"lock", "handoff", "waiters", "held", "list"}
