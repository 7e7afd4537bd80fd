package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// running is the processes of a server.
type running struct {
	// store is the protocol that they speak, as bench names it.
	store     string
	endpoints []string
	nodes     []node
	close     func() error
}

// node is one process.
type node struct {
	name string
	pid  int
	// syncs returns how often the node has made its log durable; nil if it does not tell.
	syncs func(context.Context) (float64, error)
}

// startTimeout bounds the start of all nodes of a server.
const startTimeout = time.Minute

// start starts a variant on empty directories in dir, and waits until it serves.
func (v variant) start(ctx context.Context, nodes int, dir string) (r running, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if v.server.rival != nil {
		return v.server.rival.start(ctx, v.server.command, dir)
	}
	command := v.command()
	c, err := faults.New(faults.Options{Binary: command[0], Args: command[1:], Nodes: nodes, Dir: dir})
	if err != nil {
		return r, err
	}
	if err := c.Start(ctx); err != nil {
		return r, errors.Join(fmt.Errorf("start: %w", err), c.Close())
	}
	r = running{store: "etcd", endpoints: c.Endpoints(), close: c.Close}
	for _, n := range c.Nodes {
		r.nodes = append(r.nodes, node{name: n.Name, pid: n.PID(), syncs: func(ctx context.Context) (float64, error) {
			return patiently(func() (float64, error) { return n.Metric(ctx, "etcd_disk_wal_fsync_duration_seconds_count") })
		}})
	}
	return r, nil
}

// patiently asks a node that is busy more often than once.
func patiently(ask func() (float64, error)) (v float64, err error) {
	for range 10 {
		if v, err = ask(); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return v, err
}
