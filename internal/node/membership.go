package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/leadership"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/system"
)

// ErrRefused is returned for a node that the others do not let in.
var ErrRefused = errors.New("the cluster refuses this node")

// returned says what to do about a node that was a member with another data directory.
const returned = "it was a member with another data directory; bring the directory back, " + datadir.Lost

// firstNodes returns the cluster's first nodes by id, as the flags have them.
func firstNodes(c *config.Config) []datadir.Member {
	nodes := make([]datadir.Member, 0, len(c.InitialCluster))
	for name, urls := range c.InitialCluster {
		u := sortedURLs(urls)
		nodes = append(nodes, datadir.Member{ID: memberID(u, c.ClusterToken), Name: name, PeerURLs: u})
	}
	slices.SortFunc(nodes, func(a, b datadir.Member) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// membership is what a node knows of the cluster's nodes, and who may talk to it. Methods may be called from any
// goroutine.
type membership struct {
	self uint64
	// replica is the id of this node's replicas at its start.
	replica uint64
	// joined says that the node joined a cluster that was there.
	joined bool
	// first are the cluster's first nodes, or those that were members when this one joined, by id. Until
	// the state has a cluster they are all that is known. The place of a first node, from 1, is the id of its replicas.
	first []datadir.Member
	// system is the system shard's state on this node.
	system *system.Machine
	// instance is that of this node's directory.
	instance string

	mu sync.Mutex
	// newer are nodes that this one does not know and that have proved to know more of the members than it does, by id;
	// protected by mu.
	newer map[uint64]peer.Hello
	// refusals holds the nodes of which this one is no part of the cluster; protected by
	// mu.
	refusals map[uint64]bool
}

var _ leadership.Members = (*membership)(nil)

// newMembership returns what a node's directory says. alone is the node as its flags have it, for one whose directory
// names no others.
func newMembership(id datadir.Identity, alone datadir.Member) *membership {
	first := id.Nodes
	if len(first) == 0 {
		first = []datadir.Member{alone}
	}
	return &membership{
		self: id.NodeID, instance: id.Instance, replica: replicaIn(id), joined: id.Replica != 0, first: first,
		newer: make(map[uint64]peer.Hello), refusals: make(map[uint64]bool),
	}
}

// replicaIn returns the id of the replicas of a directory's node.
func replicaIn(id datadir.Identity) uint64 {
	if id.Replica != 0 {
		return id.Replica
	}
	return max(replicaOf(id.Nodes, id.NodeID), 1) // without other nodes it is the only one
}

// replicaOf returns the id of a first node's replicas, 0 for another node.
func replicaOf(first []datadir.Member, node uint64) uint64 {
	return uint64(slices.IndexFunc(first, func(m datadir.Member) bool { return m.ID == node }) + 1)
}

// born returns the first nodes by the ids of their replicas: what each shard began with. It is nil for a node
// that joined, whose replicas are added to shards that are there.
func (r *membership) born() map[uint64]uint64 {
	if r.joined {
		return nil
	}
	members := make(map[uint64]uint64, len(r.first))
	for i, m := range r.first {
		members[uint64(i)+1] = m.ID
	}
	return members
}

// nodes returns the members' ids, in rising order where the state has a cluster.
func (r *membership) nodes() []uint64 { return r.nodesOf(r.system.State()) }

// nodesOf is nodes for who has read a state already: a later one may have others.
func (r *membership) nodesOf(state *system.State) (nodes []uint64) {
	if state.Cluster.ID != 0 {
		for _, n := range state.SortedNodes() {
			nodes = append(nodes, n.ID)
		}
		return nodes
	}
	for _, m := range r.first {
		nodes = append(nodes, m.ID)
	}
	return nodes
}

// reachable returns the members and the nodes that are let in since they know more of them.
func (r *membership) reachable() []uint64 {
	state := r.system.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := r.nodesOf(state)
	for id := range r.newer {
		if _, ok := r.knowsMore(state, id); ok {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

// knowsMore returns what a node has said that knows more of the members than a state, false if none has. r.mu must be held.
func (r *membership) knowsMore(state *system.State, node uint64) (h peer.Hello, ok bool) {
	h, ok = r.newer[node]
	return h, ok && h.Version > state.Cluster.Members
}

// started returns the members that have started at some time, and so have replicas.
func (r *membership) started() []uint64 {
	state := r.system.State()
	return slices.DeleteFunc(r.nodesOf(state), func(id uint64) bool {
		n, ok := state.Nodes[id]
		return ok && n.Instance == ""
	})
}

// Voters returns the nodes that vote and stay, in rising order.
func (r *membership) Voters() []uint64 {
	state := r.system.State()
	if state.Cluster.ID == 0 {
		return r.nodesOf(state)
	}
	var nodes []uint64
	for _, n := range state.Voters() {
		nodes = append(nodes, n.ID)
	}
	return nodes
}

// NodeOf returns the node that a shard's replica is on, 0 for none.
func (r *membership) NodeOf(shardID, replicaID uint64) uint64 {
	if state := r.system.State(); state.Cluster.ID != 0 {
		return state.Shard(shardID).Replicas[replicaID]
	}
	return r.born()[replicaID]
}

// ReplicaOf returns the id of a shard's replica on a node, 0 for none.
func (r *membership) ReplicaOf(shardID, node uint64) uint64 {
	if state := r.system.State(); state.Cluster.ID != 0 {
		return state.ReplicaOf(shardID, node)
	}
	if r.joined {
		return 0
	}
	return replicaOf(r.first, node)
}

// name returns a node's name, or its id where it has none yet.
func (r *membership) name(node uint64) string {
	name := r.system.State().Nodes[node].Name
	if at := replicaOf(r.first, node); name == "" && at > 0 {
		name = r.first[at-1].Name
	}
	return cmp.Or(name, fmt.Sprintf("%x", node))
}

// leaving reports whether this node is being removed.
func (r *membership) leaving() bool { return r.system.State().Nodes[r.self].Leaving }

// urls returns where a node is reached: where the cluster says, and before there is one
// where the flags say.
func (r *membership) urls(node uint64) []string {
	state := r.system.State()
	if known, ok := state.Nodes[node]; ok {
		return known.PeerURLs
	}
	r.mu.Lock()
	h, ok := r.knowsMore(state, node)
	r.mu.Unlock()
	if ok {
		return h.URLs
	}
	if at := replicaOf(r.first, node); at > 0 {
		return r.first[at-1].PeerURLs
	}
	return nil
}

// says is what this node says of the members to another.
func (r *membership) says(other uint64) peer.Membership {
	state := r.system.State()
	return peer.Membership{Version: state.Cluster.Members, URLs: state.Nodes[r.self].PeerURLs, Other: state.Nodes[other].Instance}
}

// admit judges another node. A node that was announced with another data directory is
// turned away for good: it may have voted, and does not know it any more. So is one that was removed.
//
// All others may have been replaced while this node was down, and it hears of that from nodes that it does not know. One that knows more changes of
// the members, and this node's directory, which only members know, is let in until this node knows as many.
// It may have been removed by then: Raft's terms and logs judge what it says, as with any node that does not know yet.
func (r *membership) admit(h peer.Hello) error {
	state := r.system.State()
	err := state.Admits(h.Node, h.Instance)
	switch {
	case errors.Is(err, system.ErrRemoved):
		return peer.ErrRemoved
	case errors.Is(err, system.ErrInstance):
		return fmt.Errorf("%w: %s", peer.ErrBarred, returned)
	case err != nil && h.Version > state.Cluster.Members && h.Other != "" && h.Other == r.instance:
		r.mu.Lock()
		r.newer[h.Node] = h
		r.mu.Unlock()
	case err != nil && (state.Cluster.ID != 0 && !r.joining(state) || replicaOf(r.first, h.Node) == 0):
		return fmt.Errorf("node %x is no member of the cluster; one that was added starts with an empty directory and --initial-cluster-state=existing", h.Node)
	}
	return nil
}

// joining reports whether a state is older than this node's membership: it may not know nodes that this one
// was told of when it joined.
func (r *membership) joining(state *system.State) bool {
	_, ok := state.Nodes[r.self]
	return r.joined && !ok
}

// refused notes that another node does not let this one in, and returns an error if there
// is no hope: it says so for good, or so many take this node for one of another cluster
// that the rest is no quorum. A node that knows its cluster knows its secret: there, who can't
// prove to know it too is somebody else at another node's address.
func (r *membership) refused(e *peer.RefusedError) error {
	if !e.Proved && r.system.State().Cluster.ID != 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == peer.RefusedCluster {
		r.refusals[e.Node] = true
	} else {
		delete(r.refusals, e.Node)
	}
	if e.Kind == peer.RefusedRemoved {
		return fmt.Errorf("%w: %w", peer.ErrRemoved, e)
	}
	if all := len(r.nodes()); e.Kind == peer.RefusedBarred || all-len(r.refusals) <= all/2 {
		return fmt.Errorf("%w: %w", ErrRefused, e)
	}
	return nil
}
