package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// admit has a member let a node join, and returns the node, nil if that is not to be.
func (c *cluster) admit(random uint64, urls []string, instance string) *node {
	rnd := rand.New(rand.NewPCG(random, 1))
	for range 100 {
		p := c.any(rnd)
		if p == nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		err := p.cluster.JoinMember(ctx, urls, instance, system.Version)
		cancel()
		switch {
		case errors.Is(err, system.ErrNotMember), errors.Is(err, system.ErrInstance), c.ctx.Err() != nil:
			return nil
		case err != nil:
			time.Sleep(10 * time.Millisecond)
			continue
		}
		state := p.cluster.State()
		for _, m := range state.Nodes {
			if !slices.Equal(m.PeerURLs, urls) {
				continue
			}
			n := newNode(c, m.ID, state.ReplicaOf(placement.SystemShard, m.ID))
			n.instance, n.urls = instance, urls
			for id := range state.Nodes {
				n.told = append(n.told, id)
			}
			c.mu.Lock()
			c.nodes = append(c.nodes, n)
			c.mu.Unlock()
			return n
		}
		return nil // it has been removed again
	}
	return nil
}

// copied returns a node of which no process runs, with a copy of its disks.
func (n *node) copied() (*node, error) {
	old := newNode(n.c, n.id, n.replica)
	old.told, old.urls, old.instance = n.told, n.urls, n.instance
	old.state = n.state.CrashClone(vfs.CrashCloneCfg{})
	for _, dir := range []string{"/system", "/data"} {
		if _, err := raftvfs.Clone(n.raft, old.raft, dir, dir); err != nil {
			return nil, err
		}
	}
	return old, nil
}

// revive starts a node again that has died.
func (c *cluster) revive(n *node) {
	c.mu.Lock()
	lost := n.lost
	c.mu.Unlock()
	if lost || n.refused() != nil {
		return
	}
	if err := n.restart(c.ctx); err != nil && n.refused() == nil && !errors.Is(err, errCut) && !errors.Is(err, errRuns) && !errors.Is(err, context.Canceled) {
		c.tb.Errorf("node %d does not start: %v", n.id, err)
	}
}
