package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

const (
	// waitLogInterval is how often a node that waits says so.
	waitLogInterval = 10 * time.Second
	// shapePoll is how often it checks whether a shard has its shape.
	shapePoll = 5 * time.Millisecond
)

// openShards starts the system shard, makes the cluster if there is none, and starts
// the data shards that have a replica here. It waits for a quorum of the nodes as long as
// ctx lasts.
func (n *Node) openShards(ctx context.Context, o *Options) error {
	var ignored []string
	var err error
	n.tokens, ignored, err = auth.NewTokens(o.Config.AuthToken, o.Config.AuthTokenTTL)
	if err != nil {
		return fmt.Errorf("read --auth-token: %w", err)
	}
	if len(ignored) > 0 {
		o.Log.Warn("options of --auth-token are not known", slog.Any("options", ignored))
	}
	if err := n.openSystem(ctx, o); err != nil {
		return err
	}
	stop := sayWaiting(ctx, func() {
		n.log.Warn("waiting for a quorum of the cluster's nodes",
			slog.Int("nodes", len(n.membership.nodes())), slog.Any("unreached", n.unreached()))
	})
	defer stop()
	end := n.serveEarly(ctx, o)
	state, err := n.join(ctx, o)
	if failed := end(); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	// Not before: the log that was there at the start would tell of tokens of earlier processes.
	n.cluster.Follow(n.tokens)
	if err := n.openData(state); err != nil {
		return err
	}
	return n.awaitShards(ctx, state)
}

// answerAll answers the calls of other nodes for all shards, and for the calls of clients if they are
// served.
func (n *Node) answerAll() {
	s := remote.Server{System: n.cluster.Here(), SystemLog: n.cluster.Replica(), Shards: n.shards, Unfit: n.unfit}
	if n.server != nil {
		s.Waits, s.Open = n.server.Waits, n.router.Coordinates
	}
	n.peers.answer(s)
}

// openSystem starts the system shard's replica.
func (n *Node) openSystem(ctx context.Context, o *Options) error {
	id := n.dir.Identity()
	members := n.membership.born()
	if n.membership.system.State().Cluster.ID == 0 && !n.membership.joined {
		if err := nodesChanged(o.Config.DataDir, n.membership.first, firstNodes(o.Config)); err != nil {
			return err
		}
	}
	c := system.Config{
		Host: n.system, Machine: n.membership.system, Self: id.NodeID, ReplicaID: n.membership.replica,
		Members: members, Targets: targets("system", members), Timeout: requestTimeout(o.Config),
	}
	n.peers.connectSystem(&c)
	var err error
	if n.cluster, err = system.Start(c); err != nil {
		return err
	}
	n.peers.answer(remote.Server{System: n.cluster.Here()})
	n.admitting.Store(n.cluster)
	n.followers.Go(func() { n.followMembers(ctx) })
	return nil
}

// targets returns the NodeHostIDs of members on hosts of a name.
func targets(name string, members map[uint64]uint64) map[uint64]string {
	ids := make(map[uint64]string, len(members))
	for replica, node := range members {
		ids[replica] = nodeHostID(name, node)
	}
	return ids
}

// sayWaiting has a node say every now and then what it waits for, until the function that it
// returns is called.
func sayWaiting(ctx context.Context, say func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		every(ctx, waitLogInterval, say)
	}()
	return func() {
		cancel()
		<-done
	}
}

// join makes the cluster, unless there is one, and returns its state when this node has
// caught up with it.
func (n *Node) join(ctx context.Context, o *Options) (*system.State, error) {
	self := n.record(o)
	for {
		state, err := n.cluster.Bootstrap(ctx, self, n.records(self), o.Config.InitialSplits)
		switch {
		case err == nil:
			return state, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, system.ErrSplits):
			return nil, fmt.Errorf("%w; start the node with the --initial-splits of its first start, or without", err)
		case errors.Is(err, system.ErrInstance):
			return nil, fmt.Errorf("%w: %s", ErrRefused, returned)
		case !errors.Is(err, raft.ErrTimeout):
			return nil, err
		}
	}
}

// record is what this node says of itself. Its peer URLs are those that it was made
// with, as in etcd.
func (n *Node) record(o *Options) system.NodeRecord {
	id := n.dir.Identity()
	return system.NodeRecord{
		ID: id.NodeID, Name: o.Config.Name, PeerURLs: n.membership.urls(id.NodeID),
		ClientURLs: sortedURLs(o.Config.AdvertiseClientURLs), Instance: id.Instance,
	}
}

// records are the cluster's first nodes; the others have not said anything of
// themselves.
func (n *Node) records(self system.NodeRecord) []system.NodeRecord {
	all := make([]system.NodeRecord, 0, len(n.membership.first))
	for _, m := range n.membership.first {
		r := system.NodeRecord{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs}
		if m.ID == self.ID {
			r = self
		}
		all = append(all, r)
	}
	return all
}

// openShard starts a data shard's replica, if there is one here.
func (n *Node) openShard(h system.ShardRecord) error {
	for replicaID, nodeID := range h.Replicas {
		if nodeID != n.membership.self {
			continue
		}
		d, err := shard.Start(n.data, shard.DataConfig{
			ShardID: h.ID, ReplicaID: replicaID, Members: targets("data", n.membership.born()), Oracle: n.cluster, Observer: n.metrics,
		})
		if err != nil {
			return err
		}
		n.shards[h.ID] = d
	}
	return nil
}

// awaitShards waits until every data shard has a leader, on whichever node, and a shape, and
// until this node holds of it all that it showed before it was started anew.
// The node that leads gives a shard its first. All are seen to at once: nodes that wait
// for each other's shards one by one would wait for ever. A node that is being removed does not wait: shards that have let go
// of it have no leader for it any more, and it has to hand over what it comes to lead all the same.
func (n *Node) awaitShards(ctx context.Context, state *system.State) error {
	for !n.membership.leaving() {
		ready := true
		for id, d := range n.shards {
			ok, err := giveShape(ctx, d, shard.Shape{Ordered: state.Order.Begun, Owned: state.Map.Owned(id)}, 4*n.electionTimeout)
			if err != nil {
				return fmt.Errorf("give shard %d its shape: %w", id, err)
			}
			ready = ready && ok && d.Replica().Recovered()
		}
		if ready {
			return nil
		}
		t := time.NewTimer(shapePoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

// lacking returns the data shards that this node holds no state of. What it has of one that has no shape is nothing, not even an old
// state: it answers no client from that.
func (n *Node) lacking() (shards []uint64) {
	for _, d := range n.shards {
		if !d.Shape().HasShape() {
			shards = append(shards, d.Replica().ShardID())
		}
	}
	return shards
}

// awaitShapes waits until this node holds a state of each data shard. Only one that is being removed may not: it may never
// get one, and serves nobody until it hears that it has been removed.
func (n *Node) awaitShapes(ctx context.Context) error {
	stop := sayWaiting(ctx, func() {
		n.log.Warn("waiting for what data shards hold", slog.Any("shards", n.lacking()), slog.Bool("being_removed", n.membership.leaving()))
	})
	defer stop()
	t := time.NewTicker(shapePoll)
	defer t.Stop()
	for len(n.lacking()) > 0 {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// giveShape gives a shard its first shape, if this node leads it, and reports whether it has
// one and a leader. An attempt takes no longer than within.
func giveShape(ctx context.Context, d *shard.Data, shape shard.Shape, within time.Duration) (ready bool, err error) {
	leader, serving := d.Replica().Leader().ReplicaID, d.Replica().Serving() != 0
	if d.Shape().HasShape() {
		return serving || leader != 0 && leader != d.Replica().ReplicaID(), nil
	}
	if !serving {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, raft.ErrTimeout)
	defer cancel()
	err = d.GiveShape(ctx, shape)
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrNotApplied) || errors.Is(err, raft.ErrTimeout) {
		err = nil // the next attempt tells
	}
	return false, err
}
