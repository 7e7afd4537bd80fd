package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

const (
	nodes       = 3
	writeEvery  = 10 * time.Millisecond
	settle      = 2 * time.Second
	observe     = 4 * time.Second
	startWithin = time.Minute
	patience    = 5 * time.Second
	// hitFrom is the shortest time between two writes that counts as an outage.
	hitFrom = 200 * time.Millisecond
)

// lose runs a cluster, takes the node that leads away, and returns for how long so many
// clients could not write.
func (s server) lose(ctx context.Context, way, dir string, clients int) (o outcome, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return o, err
	}
	layout := faults.Options{Binary: s.binary, Nodes: nodes, Dir: dir, Args: s.args}
	if way == "isolate" {
		if layout.Network, err = faults.NewNetwork(nodes); err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, layout.Network.Close()) }()
	}
	c, err := faults.New(layout)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, c.Close(), os.RemoveAll(dir)) }()
	start, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := c.Start(start); err != nil {
		return o, err
	}
	if way == "holder" {
		o.longest, err = pass(ctx, c)
		return o, err
	}
	writers, stop, err := write(ctx, c, clients)
	if err != nil {
		return o, err
	}
	time.Sleep(settle)
	leader, err := s.leading(ctx, c)
	if err != nil {
		return o, errors.Join(err, stop())
	}
	for _, w := range writers {
		w.reset()
	}
	if err := take(way, c, layout.Network, leader); err != nil {
		return o, errors.Join(err, stop())
	}
	time.Sleep(observe)
	for _, w := range writers {
		longest := w.longest()
		o.longest = max(o.longest, longest)
		if longest >= hitFrom {
			o.hit++
		}
	}
	return o, errors.Join(stop(), c.Nodes[leader].Thaw())
}

// take takes a node away.
func take(way string, c *faults.Cluster, n *faults.Network, node int) error {
	switch way {
	case "none":
		return nil
	case "kill":
		return c.Nodes[node].Kill()
	case "freeze":
		return c.Nodes[node].Freeze()
	case "isolate":
		return n.Isolate(node)
	case "stop":
		_, err := c.Nodes[node].Terminate()
		return err
	}
	return fmt.Errorf("no way %q", way)
}

// leading returns the node that leads: the one shard, or where there are several the
// cluster, with some of the shards.
func (s server) leading(ctx context.Context, c *faults.Cluster) (int, error) {
	for i, n := range c.Nodes {
		if led, err := n.ShardsLed(ctx); err == nil && s.shards == 1 && led == 1 {
			return i, nil
		}
	}
	for i, n := range c.Nodes {
		client, err := faults.Dial(n.Client)
		if err != nil {
			return 0, err
		}
		status, err := client.Status(ctx, n.Client)
		if err = errors.Join(err, client.Close()); err != nil {
			return 0, err
		}
		if status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, errors.New("nobody leads")
}

// writer writes a key of its own and keeps the longest time between two answers.
type writer struct {
	mu sync.Mutex
	// last is the moment of the last write that was acknowledged, gap the longest time
	// between two; protected by mu.
	last time.Time
	gap  time.Duration
}

func (w *writer) acked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.gap = max(w.gap, now.Sub(w.last))
	w.last = now
}

func (w *writer) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gap = 0
}

// longest returns the longest gap, one that has not ended among them.
func (w *writer) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.gap, time.Since(w.last))
}

// write starts writers whose keys are spread evenly.
func write(ctx context.Context, c *faults.Cluster, count int) (writers []*writer, stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var clients []*clientv3.Client
	stop = func() error {
		cancel()
		wg.Wait()
		var errs []error
		for _, c := range clients {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	for i := range count {
		client, err := faults.Dial(c.Endpoints()...)
		if err != nil {
			return nil, stop, errors.Join(err, stop())
		}
		clients = append(clients, client)
		w := &writer{last: time.Now()}
		writers = append(writers, w)
		key := string(rune('a'+i*26/count)) + "/outage"
		wg.Go(func() {
			t := time.NewTicker(writeEvery)
			defer t.Stop()
			for ctx.Err() == nil {
				// One write does not wait for another: a single one that is lost, as those that
				// were on their way to the leader may be, is no outage.
				wg.Go(func() {
					try, done := context.WithTimeout(ctx, patience)
					defer done()
					if _, err := client.Put(try, key, ""); err == nil {
						w.acked()
					}
				})
				<-t.C
			}
		})
	}
	return writers, stop, nil
}
