package system

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/placement"
)

// State is everything that the system shard says, at one moment. It is
// immutable.
type State struct {
	// Cluster is the zero value until the cluster has been bootstrapped.
	Cluster ClusterRecord
	// Nodes by id.
	Nodes map[uint64]NodeRecord
	// Removed are the nodes that were members, by id, for ever.
	Removed map[uint64]RemovedRecord
	// Shards by id, the system shard not among them.
	Shards map[uint64]ShardRecord
	// System is the system shard; the zero value until the cluster has been bootstrapped.
	System ShardRecord
	// Map says which shard owns which positions.
	Map placement.Map
	// Alarms are raised, ordered by member and type.
	Alarms []AlarmRecord
	// Order is the cluster's one order of revisions.
	Order OrderRecord
	// Auth is the users and roles; never nil in a state that was loaded.
	Auth *auth.State
}

// ClusterRecord is what concerns the cluster as a whole.
type ClusterRecord struct {
	// ID is drawn when the cluster is made, never 0 afterwards.
	ID uint64 `json:"id"`
	// Version is the cluster version: all nodes speak it. See version.go.
	Version uint32 `json:"version"`
	// Epoch is the version of the map; it rises with every change of it.
	Epoch uint64 `json:"epoch"`
	// Splits are the keys at which the users' keys were divided when the cluster was
	// made.
	Splits [][]byte `json:"splits,omitempty"`
	// NextShard is the id of the next shard. Ids are never used again.
	NextShard uint64 `json:"next_shard"`
	// Members counts the changes of the members.
	Members uint64 `json:"members,omitempty"`
}

// NodeRecord is one node.
type NodeRecord struct {
	ID         uint64   `json:"id"`
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peer_urls"`
	ClientURLs []string `json:"client_urls"`
	// Instance is that of the node's data directory, empty until the node has announced
	// itself. It never changes then.
	Instance string `json:"instance,omitempty"`
	// Version is the newest cluster version that the node speaks, 0 until it has announced
	// itself. It may go back with the node's program.
	Version uint32 `json:"version,omitempty"`
	// Learner says that the node does not vote until it is promoted.
	Learner bool `json:"learner,omitempty"`
	// Leaving says that the node is being removed: it takes over nothing, and votes until its
	// replicas have been removed one by one.
	Leaving bool `json:"leaving,omitempty"`
}

// Started reports whether the node has announced itself, as etcd's members do by their names.
func (n NodeRecord) Started() bool { return n.Name != "" }

// RemovedRecord is a node that was a member.
type RemovedRecord struct {
	ID uint64 `json:"id"`
}

// ShardRecord is one shard.
type ShardRecord struct {
	ID uint64 `json:"id"`
	// Replicas are the shard's members, those that are to become some among them: replica id to node id.
	Replicas map[uint64]uint64 `json:"replicas"`
	// NextReplica is the id of the next member. Ids are never used again.
	NextReplica uint64 `json:"next_replica"`
}

// AlarmRecord is one raised alarm.
type AlarmRecord struct {
	Member uint64       `json:"member"`
	Type   pb.AlarmType `json:"type"`
}

// clone returns a State that may be changed record by record without touching s.
func (s *State) clone() *State {
	c := &State{
		Cluster: s.Cluster,
		Nodes:   make(map[uint64]NodeRecord, len(s.Nodes)),
		Removed: s.Removed,
		Shards:  make(map[uint64]ShardRecord, len(s.Shards)),
		System:  s.System,
		Map:     slices.Clone(s.Map),
		Alarms:  slices.Clone(s.Alarms),
		Order:   s.Order,
		Auth:    s.Auth,
	}
	for id, n := range s.Nodes {
		c.Nodes[id] = n
	}
	for id, h := range s.Shards {
		c.Shards[id] = h
	}
	return c
}

// SortedNodes returns the nodes by id.
func (s *State) SortedNodes() []NodeRecord {
	nodes := make([]NodeRecord, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b NodeRecord) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return nodes
}

// compareAlarms orders alarms by member and type.
func compareAlarms(a, b AlarmRecord) int {
	switch {
	case a.Member != b.Member && a.Member < b.Member:
		return -1
	case a.Member != b.Member:
		return 1
	default:
		return int(a.Type) - int(b.Type)
	}
}
