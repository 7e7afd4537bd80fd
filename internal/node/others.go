package node

import (
	"context"
	"slices"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/leadership"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/system"
)

// peers is what a node has to do with the other nodes of its cluster, of which there may be none.
type peers struct {
	node       *Node
	mesh       *peer.Mesh
	succession *leadership.Succession
	// spreader and verifier are nil until leaders and verify have been called.
	spreader *leadership.Spreader
	verifier *verifier
}

// connectHost gives a host of replicas its pace, and the wire to those of its name.
func (p *peers) connectHost(h *raft.HostConfig, c *config.Config) {
	h.Tick, h.ElectionTicks = c.HeartbeatInterval, uint64(c.ElectionTimeout/c.HeartbeatInterval)
	h.Wire = newWire(p.mesh.Wire(h.Name), &hosts{name: h.Name, nodes: p.node.membership.reachable}, p.succession.Heard, p.node.diskStuck)
}

// connectSystem tells the system shard how its leader on another node is found.
func (p *peers) connectSystem(c *system.Config) {
	c.Remote = func() system.Leader { return remote.SystemLeader(p.mesh, p.node.cluster) }
}

// answer has a server answer the calls of other nodes.
func (p *peers) answer(s remote.Server) {
	s.Missed = p.succession.Misses
	p.mesh.Handle(func(ctx context.Context, _ uint64, request []byte) []byte { return s.Handle(ctx, request) })
}

// reached reports whether there is a connection to another node.
func (p *peers) reached(node uint64) bool { return p.mesh.Reached(node) }

// waiting returns the other nodes as those whose calls wait for locks.
func (p *peers) waiting() lock.Peers { return waiting{p} }

// waiting is the other nodes as those whose calls wait for locks.
type waiting struct{ *peers }

// Nodes names the other nodes.
func (w waiting) Nodes() []uint64 {
	self := w.node.membership.self
	return slices.DeleteFunc(w.node.membership.nodes(), func(node uint64) bool { return node == self })
}

// Waits asks a node what clients wait for there.
func (w waiting) Waits(ctx context.Context, node uint64, clients []string) ([]deadlock.Wait, error) {
	return remote.Waits(ctx, w.mesh, node, clients)
}

// disconnect ends all connections.
func (p *peers) disconnect() { p.mesh.Close() }

// leaders returns how the leaders on other nodes are found. It is called once, when the data shards
// run.
func (p *peers) leaders() router.Leaders {
	n := p.node
	found := &remote.Leaders{Mesh: p.mesh, Shards: n.shards, NodeOf: n.membership.NodeOf}
	data := make(map[uint64]*raft.Replica, len(n.shards))
	for id, d := range n.shards {
		data[id] = d.Replica()
	}
	p.spreader = leadership.NewSpreader(leadership.Config{
		Self: n.membership.self, Members: n.membership, System: n.cluster.Replica(), Data: data,
		Applied: p.applied, Release: n.cluster.Release, Election: n.electionTimeout, Log: n.log,
	})
	return found
}

// appliedElections is how many election timeouts another node has to say how far it is.
const appliedElections = 2

// applied asks another node how far its replica of a shard has applied.
func (p *peers) applied(ctx context.Context, node, shardID uint64) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, appliedElections*p.node.electionTimeout, raft.ErrTimeout)
	defer cancel()
	return (&remote.Leaders{Mesh: p.mesh}).Applied(ctx, node, shardID)
}

// verify compares this node's data with the others', if it is to before it serves.
func (p *peers) verify(ctx context.Context, o *Options) error {
	p.verifier = newVerifier(p)
	if !o.Config.InitialCorruptCheck {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout(o.Config))
	defer cancel()
	return p.verifier.atStart(ctx)
}

// start begins what goes on for as long as the node serves, and stop ends it.
func (p *peers) start(c *config.Config) {
	p.spreader.Start()
	p.succession.Start(p.spreader.Replicas())
	p.verifier.start(c)
}

func (p *peers) stop() {
	p.stopLeading()
	if p.verifier != nil {
		p.verifier.close()
	}
}

// stopLeading ends what has leaders change.
func (p *peers) stopLeading() {
	p.succession.Close()
	if p.spreader != nil {
		p.spreader.Close()
	}
}

// move has a node lead what this one leads.
func (p *peers) move(ctx context.Context, node uint64) error {
	if !p.spreader.Move(ctx, node) {
		return api.ErrNotMoved
	}
	return nil
}

// leave hands what this node leads over to any.
func (p *peers) leave(ctx context.Context) {
	p.stopLeading()
	if p.spreader != nil {
		p.spreader.Drain(ctx)
	}
}
