package main

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// holderTTL is the time to live of the holder's lease, in seconds.
const holderTTL = 5

// pass has one client hold a lock for which another waits, takes the holder away in the
// middle of its lease and returns how long it takes until the other has the lock.
func pass(ctx context.Context, c *faults.Cluster) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	clients, done, err := faults.DialEach(c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	holder, err := concurrency.NewSession(clients[0], concurrency.WithTTL(holderTTL))
	if err != nil {
		return 0, err
	}
	if err := concurrency.NewMutex(holder, "outage").Lock(ctx); err != nil {
		return 0, err
	}
	waiter, err := concurrency.NewSession(clients[1], concurrency.WithTTL(holderTTL))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, waiter.Close()) }()
	got := make(chan error, 1)
	go func() { got <- concurrency.NewMutex(waiter, "outage").Lock(ctx) }()
	time.Sleep(settle)
	// A client renews three times in its TTL: the last renewal is no older than a third.
	begin := time.Now()
	holder.Orphan()
	err = <-got
	return time.Since(begin), err
}
