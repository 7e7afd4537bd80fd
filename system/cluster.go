package system

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

// Cluster is this node's place in the cluster, and the calls that change the
// system shard's state.
type Cluster struct {
	machine *Machine
	replica *raft.Replica
	counter *counter
	// raising has room for the one who raises the oracle's limit.
	raising chan struct{}
	self    uint64
	// first maps the system shard's first replicas to nodes: its members until there is a cluster.
	first   map[uint64]uint64
	remote  func() Leader
	timeout time.Duration
}

// Config says who this node is.
type Config struct {
	// Host runs the system shard's replica.
	Host *raft.Host
	// Machine is the system shard's state on this node.
	Machine *Machine
	// Self is this node's id, and ReplicaID its member of the system shard.
	Self, ReplicaID uint64
	// Members are the system shard's first members: replica id to node id;
	// Targets their NodeHostIDs, none for a node that joins.
	Members map[uint64]uint64
	Targets map[uint64]string
	// Remote returns the leader on another node as far as this one knows, nil if it is
	// unknown or here; may itself be nil where there are no others.
	Remote func() Leader
	// Timeout bounds calls that go through the system shard.
	Timeout time.Duration
}

// Start starts the system shard's replica.
func Start(c Config) (*Cluster, error) {
	cluster := &Cluster{
		machine: c.Machine, counter: &counter{machine: c.Machine}, raising: make(chan struct{}, 1),
		self: c.Self, first: c.Members, remote: c.Remote, timeout: c.Timeout,
	}
	_, err := c.Host.Start(raft.ReplicaConfig{
		ShardID: placement.SystemShard, ReplicaID: c.ReplicaID, Members: c.Targets, Machine: c.Machine, Leads: cluster.counter,
		Bind: func(r *raft.Replica) { cluster.replica = r },
	})
	if err != nil {
		return nil, err
	}
	return cluster, nil
}

// Bootstrap makes the cluster, unless it was made before, and makes the system
// shard say of this node what self says, and which versions it speaks. It returns the state that holds then.
// splits are the keys at which the users' keys are divided among shards, in rising
// order; a cluster that was made with others refuses them.
func (c *Cluster) Bootstrap(ctx context.Context, self NodeRecord, nodes []NodeRecord, splits [][]byte) (*State, error) {
	if err := c.confirmed(ctx); err != nil {
		return nil, err
	}
	if c.State().Cluster.ID == 0 {
		p, err := newBootstrap(nodes, c.first, splits)
		if err != nil {
			return nil, err
		}
		if restored := c.State().Order; restored.Begun {
			p.Order = restored
		}
		if _, err := c.propose(ctx, kindBootstrap, p); err != nil {
			return nil, fmt.Errorf("bootstrap cluster: %w", err)
		}
	}
	// The node is announced before anything can send it away: it takes part in Raft
	// already, and must not come back without its data directory.
	if err := c.announce(ctx, self); err != nil {
		return nil, err
	}
	if made := c.State().Cluster.Splits; len(splits) > 0 && !slices.EqualFunc(made, splits, bytes.Equal) {
		return nil, fmt.Errorf("%w: made with %q, started with %q", ErrSplits, made, splits)
	}
	return c.State(), nil
}

// announce makes the system shard say of this node what self says.
func (c *Cluster) announce(ctx context.Context, self NodeRecord) error {
	self.Version = Version
	known, ok := c.State().Nodes[self.ID]
	switch {
	case !ok:
		return fmt.Errorf("%w: %x", ErrNotMember, self.ID)
	case known.Instance != "" && known.Instance != self.Instance:
		return ErrInstance
	case sameNode(known, self):
		return nil
	}
	if _, err := c.propose(ctx, kindNode, self); err != nil {
		return fmt.Errorf("announce node: %w", err)
	}
	if c.State().Nodes[self.ID].Instance != self.Instance {
		return ErrInstance
	}
	return nil
}

// sameNode reports whether a node says of itself what is known.
func sameNode(known, self NodeRecord) bool {
	return known.Name == self.Name && known.Instance == self.Instance && known.Version == self.Version &&
		slices.Equal(known.ClientURLs, self.ClientURLs)
}

var (
	// ErrSplits is returned for a node whose cluster was made with other splits than it
	// is started with.
	ErrSplits = errors.New("the cluster was made with other splits")
	// ErrInstance is returned for a node that was a member with another data directory.
	ErrInstance = errors.New("the node was a member with another data directory")
	// ErrNotMember is returned for a node that the cluster does not know.
	ErrNotMember = errors.New("the node is no member of the cluster")
)

// newBootstrap describes a cluster of one data shard more than there are splits,
// with a replica of each on every node. Several shards are ordered from the start.
func newBootstrap(nodes []NodeRecord, members map[uint64]uint64, splits [][]byte) (bootstrap, error) {
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return bootstrap{}, fmt.Errorf("draw cluster id: %w", err)
	}
	b := bootstrap{
		Cluster: ClusterRecord{
			ID:        max(binary.BigEndian.Uint64(seed[:]), 1),
			Version:   firstVersion,
			Epoch:     1,
			Splits:    splits,
			NextShard: placement.FirstDataShard + uint64(len(splits)) + 1,
		},
		Nodes: nodes,
		Map:   placement.FirstMap(splits),
		Order: OrderRecord{Compacted: -1},
	}
	for i := range len(splits) + 1 {
		b.Shards = append(b.Shards, ShardRecord{
			ID: placement.FirstDataShard + uint64(i), Replicas: members, NextReplica: uint64(len(members)) + 1,
		})
	}
	if len(splits) > 0 {
		b.Order.Begun, b.Order.Limit, b.Order.Base = true, firstRevision, firstRevision
	}
	return b, nil
}

// firstRevision is that of an empty store, as in etcd.
const firstRevision = 1

// State returns the newest state that this node knows.
func (c *Cluster) State() *State { return c.machine.State() }

// Changes returns the newest state that this node knows, and what is closed when there is
// a newer one.
func (c *Cluster) Changes() (s *State, changed <-chan struct{}) {
	changed = *c.machine.changed.Load()
	return c.State(), changed
}

// Replica returns the system shard's replica on this node.
func (c *Cluster) Replica() *raft.Replica { return c.replica }

// ClusterID returns the cluster's id, 0 before the bootstrap.
func (c *Cluster) ClusterID() uint64 { return c.State().Cluster.ID }

// MemberID returns this node's id.
func (c *Cluster) MemberID() uint64 { return c.self }

// Term returns the system shard's Raft term.
func (c *Cluster) Term() uint64 { return c.replica.Leader().Term }

// Leader returns the node that leads the system shard, 0 while there is none.
func (c *Cluster) Leader() uint64 { return c.NodeOf(c.replica.Leader().ReplicaID) }

// NodeOf returns the node that a replica of the system shard is on, 0 for none.
func (c *Cluster) NodeOf(replicaID uint64) uint64 {
	if s := c.State(); s.Cluster.ID != 0 {
		return s.System.Replicas[replicaID]
	}
	return c.first[replicaID]
}

// Members lists the nodes. A linearizable list is the leader's.
func (c *Cluster) Members(ctx context.Context, linearizable bool) ([]*pb.Member, error) {
	if linearizable {
		if err := c.confirmed(ctx); err != nil {
			return nil, err
		}
	}
	nodes := c.State().SortedNodes()
	list := make([]*pb.Member, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, &pb.Member{ID: n.ID, Name: n.Name, PeerURLs: n.PeerURLs, ClientURLs: n.ClientURLs, IsLearner: n.Learner})
	}
	return list, nil
}

// Alarms lists the raised alarms that this node knows of.
func (c *Cluster) Alarms() []*pb.AlarmMember {
	var list []*pb.AlarmMember
	for _, a := range c.State().Alarms {
		list = append(list, &pb.AlarmMember{MemberID: a.Member, Alarm: a.Type})
	}
	return list
}

// RaiseAlarm raises an alarm of a member and returns it.
func (c *Cluster) RaiseAlarm(ctx context.Context, member uint64, t pb.AlarmType) ([]*pb.AlarmMember, error) {
	if _, err := c.propose(ctx, kindAlarm, alarm{AlarmRecord{member, t}, true}); err != nil {
		return nil, err
	}
	return []*pb.AlarmMember{{MemberID: member, Alarm: t}}, nil
}

// ClearAlarm clears an alarm of a member and returns it, or nothing if it was not
// raised.
func (c *Cluster) ClearAlarm(ctx context.Context, member uint64, t pb.AlarmType) ([]*pb.AlarmMember, error) {
	found, err := c.propose(ctx, kindAlarm, alarm{AlarmRecord{member, t}, false})
	if err != nil || !found {
		return nil, err
	}
	return []*pb.AlarmMember{{MemberID: member, Alarm: t}}, nil
}

// Follow makes sessions hear of the tokens that begin and end from now on. It is
// called when the log that was there at the start has been applied: tokens do not
// outlive the process that they were made in, though the log may tell of them again.
func (c *Cluster) Follow(sessions auth.Sessions) {
	c.replica.Between(func() { c.machine.follow(sessions) })
}

// ConfirmUsers proves that the users and roles of State are the newest.
func (c *Cluster) ConfirmUsers(ctx context.Context) error { return c.confirmed(ctx) }

// ChangeUsers changes users and roles. Errors are those of package auth, beside the
// shard's.
func (c *Cluster) ChangeUsers(ctx context.Context, r *pb.InternalRaftRequest) error {
	payload, err := raft.EncodeRequest(r)
	if err != nil {
		return err
	}
	_, err = c.send(ctx, kindUsers, payload)
	return err
}

// Login has a simple token made of prefix for a user whose password was right.
func (c *Cluster) Login(ctx context.Context, user, prefix string) (token string, err error) {
	payload, err := json.Marshal(login{user, prefix})
	if err != nil {
		return "", fmt.Errorf("encode login: %w", err)
	}
	result, err := c.send(ctx, kindLogin, payload)
	token, _ = result.(string)
	return token, err
}

// propose puts a command through the system shard and returns what it found.
func (c *Cluster) propose(ctx context.Context, k kind, command any) (bool, error) {
	payload, err := encode(command)
	if err != nil {
		return false, err
	}
	result, err := c.send(ctx, k, payload)
	found, _ := result.(bool)
	return found, err
}

func encode(command any) ([]byte, error) {
	payload, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return payload, nil
}

// send puts a command through the system shard and returns its result. It is sent
// again while it certainly has not applied.
func (c *Cluster) send(ctx context.Context, k kind, payload []byte) (result any, err error) {
	err = c.caller().UpTo(ctx, func(ctx context.Context, l Leader) (index uint64, err error) {
		result, index, err = l.Propose(ctx, raft.Kind(k), payload)
		return index, err
	})
	return result, err
}

// confirmed returns once this node has applied everything that was acknowledged before
// the call.
func (c *Cluster) confirmed(ctx context.Context) error {
	return c.caller().UpTo(ctx, func(ctx context.Context, l Leader) (uint64, error) { return l.Confirm(ctx) })
}
