package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
)

// errNoPeers is what a node without peers answers when Raft wants to reach one.
var errNoPeers = errors.New("this node has no peers")

// noPeers is the transport of a node that is a cluster of its own.
type noPeers struct{}

var (
	_ config.TransportFactory = noPeers{}
	_ raftio.ITransport       = noPeers{}
)

// Create returns the transport itself.
func (noPeers) Create(config.NodeHostConfig, raftio.MessageHandler, raftio.ChunkHandler) raftio.ITransport {
	return noPeers{}
}

// Validate accepts every address.
func (noPeers) Validate(string) bool { return true }

// Name names the transport in dragonboat's log.
func (noPeers) Name() string { return "no-peers" }

// Start does nothing.
func (noPeers) Start() error { return nil }

// Close does nothing.
func (noPeers) Close() error { return nil }

// GetConnection always fails.
func (noPeers) GetConnection(context.Context, string) (raftio.IConnection, error) {
	return nil, errNoPeers
}

// GetSnapshotConnection always fails.
func (noPeers) GetSnapshotConnection(context.Context, string) (raftio.ISnapshotConnection, error) {
	return nil, errNoPeers
}

// registryFactory makes the address book that dragonboat asks. Members are named
// by NodeHostID, so that addresses may change.
type registryFactory struct {
	resolve func(nodeHostID string) (string, bool)
}

// Create returns an empty address book.
func (f registryFactory) Create(_ string, streams uint64, _ config.TargetValidator) (raftio.INodeRegistry, error) {
	return &registry{resolve: f.resolve, streams: streams, targets: make(map[member]string)}, nil
}

type member struct{ shardID, replicaID uint64 }

// registry maps members to NodeHostIDs, and those to addresses.
type registry struct {
	resolve func(nodeHostID string) (string, bool)
	streams uint64

	mu sync.RWMutex
	// targets is protected by mu.
	targets map[member]string
}

var _ raftio.INodeRegistry = (*registry)(nil)

// Close does nothing.
func (g *registry) Close() error { return nil }

// Add records where a member lives. A member never moves: its first entry stays.
func (g *registry) Add(shardID, replicaID uint64, target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := member{shardID, replicaID}
	if _, ok := g.targets[m]; !ok {
		g.targets[m] = target
	}
}

// Remove forgets a member.
func (g *registry) Remove(shardID, replicaID uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.targets, member{shardID, replicaID})
}

// RemoveShard forgets a shard's members.
func (g *registry) RemoveShard(shardID uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for m := range g.targets {
		if m.shardID == shardID {
			delete(g.targets, m)
		}
	}
}

// Resolve returns a member's address and the key of the connection that its
// messages share.
func (g *registry) Resolve(shardID, replicaID uint64) (string, string, error) {
	g.mu.RLock()
	target, ok := g.targets[member{shardID, replicaID}]
	g.mu.RUnlock()
	if !ok {
		return "", "", fmt.Errorf("no member %d of shard %d", replicaID, shardID)
	}
	addr, ok := g.resolve(target)
	if !ok {
		return "", "", fmt.Errorf("no address of host %s", target)
	}
	return addr, fmt.Sprintf("%s-%d", addr, shardID%max(g.streams, 1)), nil
}
