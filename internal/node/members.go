package node

import (
	"context"
	"errors"
	"time"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/internal/members"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

const (
	// judgeAttempts is how often a change of the members is judged anew, since they have changed meanwhile.
	judgeAttempts = 10
	// memberPoll lies between two looks at whether a change of the members has been carried out.
	memberPoll = 20 * time.Millisecond
)

// clusterService is the system shard with what a node knows of the others: changes of the members are
// judged by who is reached and has caught up.
type clusterService struct {
	*system.Cluster
	node *Node
	// strict is --strict-reconfig-check.
	strict bool
}

var _ api.Cluster = clusterService{}

// IsLearner reports whether this node does not vote.
func (s clusterService) IsLearner() bool { return s.State().Nodes[s.MemberID()].Learner }

// AddMember takes a member in, whose node is then started.
func (s clusterService) AddMember(ctx context.Context, peerURLs []string, learner bool) (id uint64, err error) {
	err = s.judged(ctx, (*system.State).ChangesMembers, func(state *system.State) error {
		if err := s.rules(ctx, state).mayCome(learner); err != nil {
			return err
		}
		id, err = s.Cluster.AddMember(ctx, peerURLs, learner, state.Cluster.Members)
		return err
	})
	return id, err
}

// PromoteMember has a learner that has caught up vote, and returns when it does in all shards.
func (s clusterService) PromoteMember(ctx context.Context, id uint64) error {
	err := s.judged(ctx, (*system.State).ChangesMembers, func(state *system.State) error {
		m, known := state.Nodes[id]
		switch {
		case !known:
			return system.ErrNotMember
		case !m.Learner:
			return system.ErrNotLearner
		case !s.caughtUp(ctx, id):
			return system.ErrLearnerBehind
		}
		if err := s.rules(ctx, state).mayVote(); err != nil {
			return err
		}
		return s.Cluster.PromoteMember(ctx, id, state.Cluster.Members)
	})
	if err != nil {
		return err
	}
	return s.await(ctx, func(ctx context.Context) bool { return s.votes(ctx, id) })
}

// RemoveMember removes a member, and returns when it has no replicas any more.
func (s clusterService) RemoveMember(ctx context.Context, id uint64) error {
	err := s.judged(ctx, func(state *system.State) bool { return state.Removes(id) }, func(state *system.State) error {
		m, known := state.Nodes[id]
		switch {
		case !known:
			return system.ErrNotMember
		case m.Leaving:
			return nil
		}
		if err := s.rules(ctx, state).mayGo(m); err != nil {
			return err
		}
		return s.Cluster.RemoveMember(ctx, id, state.Cluster.Members)
	})
	if err != nil {
		return err
	}
	return s.await(ctx, func(context.Context) bool {
		_, removed := s.State().Removed[id]
		return removed || s.node.removed.Load()
	})
}

// judged has a change, which known says that all nodes know, judged by the newest members, and again while they have changed before it
// applied.
func (s clusterService) judged(ctx context.Context, known func(*system.State) bool, change func(*system.State) error) (err error) {
	for range judgeAttempts {
		if _, err := s.Members(ctx, true); err != nil {
			return err
		}
		state := s.State()
		if !known(state) {
			return system.ErrVersion // whatever else is in the way
		}
		if err = change(state); !errors.Is(err, system.ErrMembersChanged) {
			return err
		}
	}
	return err
}

// await waits until a change has been carried out, or ctx ends: it goes on then.
func (s clusterService) await(ctx context.Context, done func(ctx context.Context) bool) error {
	for !done(ctx) {
		t := time.NewTimer(memberPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

// rules returns what judges changes of these members.
func (s clusterService) rules(ctx context.Context, state *system.State) *memberRules {
	return &memberRules{
		state: state, strict: s.strict,
		reached: func(id uint64, long bool) bool {
			since, ok := s.node.peers.mesh.ReachedFor(id)
			return id == s.MemberID() || ok && (!long || since >= silentElections*s.node.electionTimeout)
		},
		caughtUp: func(id uint64) bool { return s.caughtUp(ctx, id) },
	}
}

// caughtUp reports whether a node has applied about as much as this one in each shard.
func (s clusterService) caughtUp(ctx context.Context, id uint64) bool {
	if id == s.MemberID() {
		return true
	}
	for _, g := range s.node.groups() {
		index, err := s.node.peers.applied(ctx, id, g.ShardID())
		if err != nil || !raft.CaughtUp(index, g.Applied()) {
			return false
		}
	}
	return true
}

// votes reports whether a node has a voter in each shard.
func (s clusterService) votes(ctx context.Context, id uint64) bool {
	for _, g := range s.node.groups() {
		have, err := g.Members(ctx)
		if err != nil {
			return false
		}
		if _, ok := have.Voters[s.State().ReplicaOf(g.ShardID(), id)]; !ok {
			return false
		}
	}
	return true
}

// groups returns this node's replicas.
func (n *Node) groups() []members.Group {
	all := []members.Group{n.cluster.Replica()}
	for _, d := range n.shards {
		all = append(all, d.Replica())
	}
	return all
}

// driveMembers starts what makes the replicas of the shards that this node leads those of the record.
func (n *Node) driveMembers() *members.Driver {
	return members.Start(members.Config{
		Record: n.cluster, Groups: n.groups, Applied: n.peers.applied, Log: n.log,
		Host: func(shardID, node uint64) string {
			if shardID == placement.SystemShard {
				return nodeHostID("system", node)
			}
			return nodeHostID("data", node)
		},
	})
}

// followMembers reaches the nodes that become members, and forgets those that are removed, until ctx ends.
func (n *Node) followMembers(ctx context.Context) {
	forgotten := make(map[uint64]bool)
	for {
		state, changed := n.cluster.Changes()
		for _, id := range n.membership.nodes() {
			n.peers.mesh.Reach(id)
		}
		for id := range state.Removed {
			if !forgotten[id] {
				forgotten[id] = true
				n.peers.mesh.Forget(id)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// handOverWhenLeaving hands over what this node leads while it is being removed, until ctx ends.
func (n *Node) handOverWhenLeaving(ctx context.Context) {
	for {
		_, changed := n.cluster.Changes()
		var again <-chan time.Time
		if n.membership.leaving() {
			n.peers.spreader.Drain(ctx)
			again = time.After(n.electionTimeout) // what could not be handed over is tried again
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}
