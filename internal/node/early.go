package node

import (
	"context"
	"time"

	"github.com/latchkey-db/latchkey/system"
)

// earlyElections is how many election timeouts a node that starts waits for a quorum before
// it serves what it can serve alone.
const earlyElections = 3

// serveEarly serves clients if the node waits for a quorum for long: its own health, and
// reads of what it holds. That takes a cluster that the node was a member of before, and a state of each shard. The
// function that it returns ends the waiting, and says what has failed.
func (n *Node) serveEarly(ctx context.Context, o *Options) (end func() error) {
	if o.Config.InitialCorruptCheck {
		return func() error { return nil } // nothing is served that has not been compared
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := n.awaitEarly(ctx, o)
		if err != nil {
			n.giveUp(err) // nobody need wait for a quorum any more
		}
		done <- err
	}()
	return func() error {
		cancel()
		return <-done
	}
}

func (n *Node) awaitEarly(ctx context.Context, o *Options) error {
	t := time.NewTicker(max(earlyElections*o.Config.ElectionTimeout, shapePoll))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		state := n.cluster.State()
		if !n.joined(state) {
			continue
		}
		if err := n.openData(state); err != nil {
			return err
		}
		if len(n.lacking()) > 0 {
			continue
		}
		if err := n.openServer(o); err != nil {
			return err
		}
		n.log.Warn("serving what this node holds, without a quorum of the cluster's nodes")
		return n.serve()
	}
}

// joined reports whether this node has been a member with this data directory: another one
// must not take part in the data shards before the others have judged it.
func (n *Node) joined(state *system.State) bool {
	id := n.dir.Identity()
	return state.Cluster.ID != 0 && state.Nodes[id.NodeID].Instance == id.Instance
}

// openData starts the data shards' replicas, unless they run, and answers the calls of
// other nodes for them.
func (n *Node) openData(state *system.State) error {
	if len(n.shards) > 0 {
		return nil
	}
	for _, h := range state.Shards {
		if err := n.openShard(h); err != nil {
			return err
		}
	}
	n.answerAll()
	return nil
}
