package sim

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/latchkey-db/latchkey/internal/leadership"
	"github.com/latchkey-db/latchkey/internal/members"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// knockPause lies between two attempts of a node to connect to the others.
const knockPause = 50 * time.Millisecond

// all returns all nodes that there ever were.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// at returns the process that runs under a node's id, nil if there is none.
func (c *cluster) at(id uint64) *process {
	for _, n := range c.all() {
		if n.id == id {
			if p := n.running(); p != nil {
				return p
			}
		}
	}
	return nil
}

// answering returns the process that answers calls of other nodes under a node's id, nil if there is none. Where the members change
// that is also one that does not serve clients yet, as among nodes.
func (c *cluster) answering(id uint64) *process {
	if c.monitor == nil {
		return c.at(id)
	}
	for _, n := range c.all() {
		n.mu.Lock()
		p := n.opened
		n.mu.Unlock()
		if n.id == id && p != nil && p.server.Load() != nil {
			return p
		}
	}
	return nil
}

// answer has the process answer calls for what runs of it.
func (p *process) answer() {
	s := &remote.Server{System: p.cluster.Here(), SystemLog: p.cluster.Replica()}
	if p.router != nil {
		s.Shards, s.Open = p.shards, p.router.Coordinates
		s.Waits = func(clients []string) []deadlock.Wait {
			if p.waits == nil {
				return nil
			}
			return p.waits(clients)
		}
	}
	p.server.Store(s)
}

// alive returns the processes that run.
func (c *cluster) alive() []*process {
	var all []*process
	for _, n := range c.all() {
		if p := n.running(); p != nil {
			all = append(all, p)
		}
	}
	return all
}

// has notes that a replica of the process has started.
func (p *process) has(r *raft.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = append(p.groups, r)
}

// replicas are those of the process that have started.
func (p *process) replicas() []*raft.Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.groups)
}

// joining reports whether a state is older than the process's membership.
func (p *process) joining(state *system.State) bool {
	_, ok := state.Nodes[p.node.id]
	return p.node.told != nil && !ok
}

// known are the ids of the nodes that the process knows.
func (p *process) known() []uint64 {
	state := p.machine.State()
	var ids []uint64
	switch {
	case state.Cluster.ID != 0 && !p.joining(state):
		for _, n := range state.SortedNodes() {
			ids = append(ids, n.ID)
		}
	case p.node.told != nil:
		ids = slices.Clone(p.node.told)
	default:
		for _, node := range p.node.born() {
			ids = append(ids, node)
		}
	}
	return ids
}

// letIn reports whether two processes let each other in, as nodes judge when they connect. What is sent away for good
// ends.
func letIn(a, b *process) bool {
	if a.node.c.monitor == nil {
		return true
	}
	here, there := a.admits(b), b.admits(a)
	return here && there
}

func (p *process) admits(other *process) bool {
	err := p.machine.State().Admits(other.node.id, other.node.instance)
	switch {
	case err == nil:
		return true
	case errors.Is(err, system.ErrRemoved), errors.Is(err, system.ErrInstance):
		other.sendAway(err)
		return false
	default:
		return other.knowsMore(p) || slices.Contains(p.known(), other.node.id)
	}
}

// knowsMore reports whether the process knows more changes of the members than another, which it knows, as nodes say to each other
// (membership.admit).
func (p *process) knowsMore(than *process) bool {
	mine, theirs := p.machine.State(), than.machine.State()
	return mine.Cluster.Members > theirs.Cluster.Members && mine.Nodes[than.node.id].Instance == than.node.instance
}

// reachable are the nodes that the process knows, and those that it lets in since they know more of the members.
func (p *process) reachable() []uint64 {
	ids := p.known()
	for _, n := range p.node.c.all() {
		if q := p.node.c.answering(n.id); q != nil && q != p && q.knowsMore(p) {
			ids = append(ids, n.id)
		}
	}
	return ids
}

// knock connects to the others again and again until the process ends, as nodes do, so that one of which nothing is heard and which
// asks for nothing is told, too, when it is no member any more.
func (p *process) knock() {
	for pause(p.ctx, knockPause) {
		for _, id := range p.known() {
			there, back := link{p.node.id, id}, link{id, p.node.id}
			if to := p.node.c.answering(id); to != nil && to != p && p.node.c.net.passes(there) && p.node.c.net.passes(back) {
				letIn(p, to)
			}
		}
	}
}

// sendAway ends a process that the others don't let in.
func (p *process) sendAway(why error) {
	n := p.node
	n.mu.Lock()
	first := n.opened == p && n.sentAway == nil
	if first {
		n.sentAway = why
	}
	n.mu.Unlock()
	if first {
		n.c.wg.Go(func() {
			if err := n.die(false, nil); err != nil {
				n.c.tb.Error(err)
			}
		})
	}
}

// refused returns why the others did not let the node in, nil if they have.
func (n *node) refused() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sentAway
}

// announce has the process say of itself who it is.
func (p *process) announce(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := p.cluster.Bootstrap(attempt, p.node.record(), nil, nil)
		cancel()
		if err == nil || errors.Is(err, system.ErrInstance) || errors.Is(err, system.ErrNotMember) {
			return err
		}
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// awaitShards waits until each shard has a leader and what it showed before, as nodes do (Node.awaitShards). A cluster that is
// being made gets its shapes later.
func (p *process) awaitShards(ctx context.Context) error {
	for _, d := range p.shards {
		ready := func() bool {
			r := d.Replica()
			led := r.Serving() != 0 || r.Leader().ReplicaID != 0 && r.Leader().ReplicaID != r.ReplicaID()
			return led && r.Recovered() && (p.node.told == nil || d.Shape().HasShape())
		}
		for !ready() && !p.cluster.State().Nodes[p.node.id].Leaving {
			if !pause(ctx, time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// awaitShapes waits until a node that joined holds a state of each shard, as nodes do (Node.awaitShapes).
func (p *process) awaitShapes(ctx context.Context) error {
	for p.node.told != nil && slices.ContainsFunc(slices.Collect(maps.Values(p.shards)), func(d *shard.Data) bool { return !d.Shape().HasShape() }) {
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}

var _ leadership.Members = (*process)(nil)

// Voters returns the nodes that vote and stay.
func (p *process) Voters() []uint64 {
	var ids []uint64
	for _, n := range p.cluster.State().Voters() {
		ids = append(ids, n.ID)
	}
	return ids
}

// NodeOf returns the node that a shard's replica is on, 0 for none.
func (p *process) NodeOf(shardID, replicaID uint64) uint64 {
	return p.cluster.State().Shard(shardID).Replicas[replicaID]
}

// ReplicaOf returns the id of a shard's replica on a node, 0 for none.
func (p *process) ReplicaOf(shardID, node uint64) uint64 {
	return p.cluster.State().ReplicaOf(shardID, node)
}

// applied asks another node how far its replica of a shard has applied.
func (p *process) applied(ctx context.Context, node, shardID uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, p.oracleAttempt())
	defer cancel()
	return (&remote.Leaders{Mesh: mesh{p}}).Applied(ctx, node, shardID)
}

// election is Raft's shortest timeout of an election.
func (p *process) election() time.Duration {
	return electionTicks * cmp.Or(p.node.c.options.tick, tick)
}

// watchedGroup is a replica whose steps of membership the monitor hears of.
type watchedGroup struct {
	*raft.Replica
	p *process
}

var _ members.Group = watchedGroup{}

func (g watchedGroup) Members(ctx context.Context) (raft.Members, error) {
	m, err := g.Replica.Members(ctx)
	if err == nil {
		g.p.node.c.monitor.told(g.ShardID(), m)
	}
	return m, err
}

func (g watchedGroup) AddNonVoting(ctx context.Context, replicaID uint64, host string, version uint64) error {
	defer g.p.node.c.monitor.look()
	return g.Replica.AddNonVoting(ctx, replicaID, host, version)
}

func (g watchedGroup) Promote(ctx context.Context, replicaID uint64, host string, version uint64) error {
	defer g.p.node.c.monitor.look()
	return g.Replica.Promote(ctx, replicaID, host, version)
}

func (g watchedGroup) RemoveMember(ctx context.Context, replicaID, version uint64) error {
	defer g.p.node.c.monitor.look()
	return g.Replica.RemoveMember(ctx, replicaID, version)
}

// changeMembers starts what a node does about the members: it makes the steps of the shards that it leads, and hands over what
// it leads while it is being removed.
func (p *process) changeMembers() {
	log := slog.New(slog.DiscardHandler)
	p.driver = members.Start(members.Config{
		Record: p.cluster, Applied: p.applied, Log: log,
		Groups: func() []members.Group {
			var all []members.Group
			for _, r := range p.replicas() {
				all = append(all, watchedGroup{r, p})
			}
			return all
		},
		Host: func(shardID, node uint64) string {
			if shardID == placement.SystemShard {
				return hostID("system", node)
			}
			return hostID("data", node)
		},
	})
	data := make(map[uint64]*raft.Replica)
	for id, d := range p.shards {
		data[id] = d.Replica()
	}
	spreader := leadership.NewSpreader(leadership.Config{
		Self: p.node.id, Members: p, System: p.cluster.Replica(), Data: data, Applied: p.applied, Release: p.cluster.Release,
		Election: p.election(), Log: log,
	})
	p.wg.Go(func() {
		for p.ctx.Err() == nil {
			state, changed := p.cluster.Changes()
			var again <-chan time.Time
			if state.Nodes[p.node.id].Leaving {
				spreader.Drain(p.ctx)
				again = time.After(p.election())
			}
			select {
			case <-changed:
			case <-again:
			case <-p.ctx.Done():
			}
		}
	})
}
