package system

import (
	"errors"
	"maps"
	"slices"

	"github.com/latchkey-db/latchkey/placement"
)

// memberOp is what is done to a member. The numbers are in the log for ever.
type memberOp uint8

const (
	// opAdd takes a member in, whose node is yet to start; it votes later, or is a learner.
	opAdd memberOp = 1
	// opJoin binds a member to the data directory that its node is started with, and gives it replicas.
	opJoin memberOp = 2
	// opPromote makes a learner a member that votes.
	opPromote memberOp = 3
	// opUpdate changes where a member is reached.
	opUpdate memberOp = 4
	// opRemove begins to remove a member; one that has no replicas is gone at once.
	opRemove memberOp = 5
	// opGone says that a member that is removed has no replicas any more.
	opGone memberOp = 6
)

// memberCommand changes the members. Its result is "", or the text of the error that says why it
// changed nothing.
type memberCommand struct {
	Op memberOp `json:"op"`
	// ID names the member, but for opJoin, which finds it by its peer URLs.
	ID       uint64   `json:"id,omitempty"`
	PeerURLs []string `json:"peer_urls,omitempty"`
	Learner  bool     `json:"learner,omitempty"`
	// Instance is that of the joining node's data directory, and Version the newest cluster version that
	// its program speaks.
	Instance string `json:"instance,omitempty"`
	Version  uint32 `json:"version,omitempty"`
	// Judged is the version of the members (ClusterRecord.Members) that the change was judged by: it
	// does not apply to others. 0 stands for a change that was judged by nothing but what apply looks at.
	Judged uint64 `json:"judged,omitempty"`
}

// The reasons for which a change of members changed nothing. Apply gives most of them; whoever judges a change before gives
// ErrNotStarted, ErrUnhealthy and ErrLearnerBehind.
var (
	// ErrMemberExists is returned for a member that is there, or was: ids are never used again.
	ErrMemberExists = errors.New("system: member exists")
	// ErrPeerURLExists is returned for a peer URL that is another member's.
	ErrPeerURLExists = errors.New("system: peer URL is another member's")
	// ErrTooManyLearners is returned where there is a learner already.
	ErrTooManyLearners = errors.New("system: too many learners")
	// ErrNotLearner is returned for a member that is to be promoted and is no learner.
	ErrNotLearner = errors.New("member is no learner")
	// ErrFirstMember is returned for a node that joins where one of the cluster's first members is yet to start.
	ErrFirstMember = errors.New("it is one of the cluster's first members: start it with --initial-cluster-state=new")
	// ErrMembersChanged is returned for a change that was judged by other members: it is to be judged anew.
	ErrMembersChanged = errors.New("system: the members have changed")
	// ErrNotStarted is returned where too few members have started for the change.
	ErrNotStarted = errors.New("too few members have started")
	// ErrUnhealthy is returned where too few members are there and have caught up for the change.
	ErrUnhealthy = errors.New("system: too few members are there")
	// ErrRemoved is returned for a node whose member was removed.
	ErrRemoved = errors.New("system: the member has been removed")
	// ErrLearnerBehind is returned for a learner that has not caught up.
	ErrLearnerBehind = errors.New("system: learner has not caught up")
	// ErrOldProgram is returned for a node that joins with a program that does not speak the cluster version.
	ErrOldProgram = errors.New("the node's program is older than what the cluster's nodes have agreed on: start a newer one")
)

// memberReasons are the errors that results of memberCommands name.
var memberReasons = []error{
	ErrMemberExists, ErrPeerURLExists, ErrTooManyLearners, ErrNotLearner, ErrMembersChanged, ErrOldProgram, ErrNotMember, ErrInstance,
	ErrFirstMember,
}

// maxLearners is etcd's.
const maxLearners = 1

// members applies a change of the members.
func (r *run) members(p memberCommand) (string, error) {
	now := r.current()
	if p.Judged != 0 && p.Judged != now.Cluster.Members {
		return ErrMembersChanged.Error(), nil
	}
	n, known := now.Nodes[p.ID]
	if p.Op == opJoin {
		n, known = now.memberAt(p.PeerURLs)
	}
	if reason := now.refuses(p, n, known); reason != nil {
		return reason.Error(), nil //nolint:nilerr // a result, not a failure
	}
	s := r.change()
	s.Cluster.Members++
	switch p.Op {
	case opAdd:
		n = NodeRecord{ID: p.ID, PeerURLs: p.PeerURLs, Learner: p.Learner}
	case opJoin:
		n.Instance, n.Version = p.Instance, p.Version
		r.addReplicas(s, n.ID)
	case opPromote:
		n.Learner = false
	case opUpdate:
		n.PeerURLs = p.PeerURLs
	case opRemove:
		n.Leaving = true
	case opGone:
	}
	if p.Op == opGone || p.Op == opRemove && now.System.replicaOn(n.ID) == 0 {
		r.forget(s, n.ID)
	} else {
		s.Nodes[n.ID] = n
		r.out.set(nodeKey(n.ID), n)
	}
	r.out.set(clusterKey(), s.Cluster)
	return "", r.raiseVersion(s)
}

// refuses returns why a change of members is not made, nil if it is. n is the member that it concerns.
func (s *State) refuses(p memberCommand, n NodeRecord, known bool) error {
	_, removed := s.Removed[p.ID]
	switch {
	case p.Op == opAdd && (known || removed):
		return ErrMemberExists
	case p.Op == opAdd:
	case !known:
		return ErrNotMember
	case p.Op == opPromote && !n.Learner:
		return ErrNotLearner
	case p.Op == opJoin && n.Instance != "" && n.Instance != p.Instance:
		return ErrInstance
	case p.Op == opJoin && n.Instance == "" && s.System.replicaOn(n.ID) != 0:
		return ErrFirstMember
	case p.Op == opJoin && p.Version < s.Cluster.Version:
		return ErrOldProgram
	}
	if p.Op != opAdd && p.Op != opUpdate {
		return nil
	}
	learners := 0
	for _, other := range s.Nodes {
		if other.Learner {
			learners++
		}
		if other.ID != p.ID && slices.ContainsFunc(other.PeerURLs, func(u string) bool { return slices.Contains(p.PeerURLs, u) }) {
			return ErrPeerURLExists
		}
	}
	if p.Learner && learners >= maxLearners {
		return ErrTooManyLearners
	}
	return nil
}

// Admits judges a node that comes with the instance of its data directory: it returns ErrRemoved for one whose member was
// removed, ErrInstance for one that was a member with another directory, which may have voted and does not know it any
// more, and ErrNotMember for any other that the record does not know.
func (s *State) Admits(node uint64, instance string) error {
	_, removed := s.Removed[node]
	known, ok := s.Nodes[node]
	switch {
	case removed:
		return ErrRemoved
	case !ok:
		return ErrNotMember
	case known.Instance != "" && known.Instance != instance:
		return ErrInstance
	}
	return nil
}

// memberAt returns the member that is reached at some peer URLs, which are in etcd's order.
func (s *State) memberAt(urls []string) (NodeRecord, bool) {
	for _, n := range s.Nodes {
		if slices.Equal(n.PeerURLs, urls) {
			return n, true
		}
	}
	return NodeRecord{}, false
}

// addReplicas gives a node a replica of each shard, unless it has them. They have the same id in all, which is
// never used again.
func (r *run) addReplicas(s *State, node uint64) {
	if s.System.replicaOn(node) != 0 {
		return
	}
	id := s.System.NextReplica
	for _, h := range s.Shards {
		id = max(id, h.NextReplica)
	}
	add := func(h ShardRecord) ShardRecord {
		h.Replicas = maps.Clone(h.Replicas)
		h.Replicas[id], h.NextReplica = node, id+1
		return h
	}
	s.System = add(s.System)
	r.out.set(systemKey(), s.System)
	for _, h := range s.Shards {
		s.Shards[h.ID] = add(h)
		r.out.set(shardKey(h.ID), s.Shards[h.ID])
	}
}

// forget takes a member out for ever.
func (r *run) forget(s *State, node uint64) {
	drop := func(h ShardRecord) ShardRecord {
		h.Replicas = maps.Clone(h.Replicas)
		delete(h.Replicas, h.replicaOn(node))
		return h
	}
	s.System = drop(s.System)
	r.out.set(systemKey(), s.System)
	for _, h := range s.Shards {
		s.Shards[h.ID] = drop(h)
		r.out.set(shardKey(h.ID), s.Shards[h.ID])
	}
	delete(s.Nodes, node)
	r.out.delete(nodeKey(node))
	s.Removed = maps.Clone(s.Removed)
	s.Removed[node] = RemovedRecord{ID: node}
	r.out.set(removedKey(node), s.Removed[node])
}

// replicaOn returns the id of the shard's replica on a node, 0 for none.
func (h ShardRecord) replicaOn(node uint64) uint64 {
	for id, n := range h.Replicas {
		if n == node {
			return id
		}
	}
	return 0
}

// Shard returns the record of a shard, that of the system shard among them; the zero value for none.
func (s *State) Shard(id uint64) ShardRecord {
	if id == placement.SystemShard {
		return s.System
	}
	return s.Shards[id]
}

// ReplicaOf returns the id of a shard's replica on a node, 0 for none.
func (s *State) ReplicaOf(shardID, node uint64) uint64 { return s.Shard(shardID).replicaOn(node) }

// Voters returns the members that vote, or will when their replicas have caught up, and stay, by id.
func (s *State) Voters() []NodeRecord {
	return slices.DeleteFunc(s.SortedNodes(), func(n NodeRecord) bool { return n.Learner || n.Leaving || n.Instance == "" })
}
