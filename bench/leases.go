package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// ttl is the time to live of leases that need not last, in seconds.
	ttl = 60
	// longTTL outlasts every run.
	longTTL = 3600
)

func grant(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	return each(o, conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		for ctx.Err() == nil {
			start := time.Now()
			if _, err := c.Grant(ctx, ttl); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

func leases(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	v := value(o.valueSize)
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for k := i; k < o.keys; k += o.clients {
			start := time.Now()
			l, err := c.Grant(ctx, longTTL)
			if err != nil {
				return err
			}
			if _, err := c.Put(ctx, name(k, strconv.Itoa(k)), v, clientv3.WithLease(l.ID)); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// grantEach grants a lease for each client.
func grantEach(ctx context.Context, o options, conns []*clientv3.Client) ([]clientv3.LeaseID, error) {
	return forEach(ctx, o, conns, func(_ int, c *clientv3.Client) (clientv3.LeaseID, error) {
		l, err := c.Grant(ctx, ttl)
		if err != nil {
			return 0, err
		}
		return l.ID, nil
	})
}

func keepalive(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	granted, err := grantEach(ctx, o, conns)
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		for ctx.Err() == nil {
			start := time.Now()
			if _, err := c.KeepAliveOnce(ctx, granted[i]); err != nil {
				return err
			}
			m.add(start)
		}
		return nil
	}), nil
}

// renew speaks the protocol itself: the client library renews when it sees fit.
func renew(ctx context.Context, o options, conns []*clientv3.Client) (work, error) {
	granted, err := grantEach(ctx, o, conns)
	if err != nil {
		return nil, err
	}
	return each(o, conns, func(ctx context.Context, i int, c *clientv3.Client, m *meter) error {
		stream, err := etcdserverpb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			start := time.Now()
			// io.EOF says that the stream has ended; Recv returns why.
			if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(granted[i])}); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			r, err := stream.Recv()
			if err != nil {
				return err
			}
			if r.TTL <= 0 {
				return errors.New("a lease ended that was renewed all the time")
			}
			m.add(start)
		}
		return nil
	}), nil
}
