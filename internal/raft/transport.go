package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// errNoPeers is what a host without a wire answers when Raft wants to reach another.
var errNoPeers = errors.New("this host reaches no other")

// noPeers is the transport of a host without a wire.
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

// Wire carries frames between a host and those of its name on other nodes. Hosts are
// called by their NodeHostIDs.
type Wire interface {
	// Listen hands what comes to message, and parts of snapshots to chunk, which says
	// whether it took the part. from is who sent it, as proved by a handshake.
	Listen(message func(from string, frame []byte), chunk func(from string, frame []byte) bool)
	// StopListening ends that: when it returns nothing is handed over any more.
	StopListening()
	// Connect opens a stream of messages to a host and ConnectSnapshot one of a snapshot's
	// parts, which last as long as ctx at the most.
	Connect(ctx context.Context, host string) (WireConn, error)
	ConnectSnapshot(ctx context.Context, host string) (WireConn, error)
}

// WireConn is a stream of frames to one host. What is sent belongs to the stream. Send
// fails once the stream is broken; that of a part of a snapshot returns when the part
// was taken.
type WireConn interface {
	Send(frame []byte) error
	Close()
}

// wired is dragonboat's transport over a wire.
type wired struct {
	wire   Wire
	log    *slog.Logger
	handle raftio.MessageHandler
	chunk  raftio.ChunkHandler
}

var (
	_ config.TransportFactory    = wired{}
	_ raftio.ITransport          = wired{}
	_ raftio.IConnection         = (*messageConn)(nil)
	_ raftio.ISnapshotConnection = chunkConn{}
)

// Create returns the transport of one host.
func (t wired) Create(_ config.NodeHostConfig, h raftio.MessageHandler, c raftio.ChunkHandler) raftio.ITransport {
	t.handle, t.chunk = h, c
	return t
}

// Validate accepts every address.
func (wired) Validate(string) bool { return true }

// Name names the transport in dragonboat's log.
func (wired) Name() string { return "wire" }

// Start lets messages in.
func (t wired) Start() error {
	t.wire.Listen(t.receive, t.receiveChunk)
	return nil
}

// Close lets no message in any more.
func (t wired) Close() error {
	t.wire.StopListening()
	return nil
}

// receive takes a batch of messages. One that says to be of another host than the one
// that sent it is dropped: dragonboat would believe it.
func (t wired) receive(from string, frame []byte) {
	var b raftpb.MessageBatch
	if err := b.Unmarshal(frame); err != nil || b.SourceAddress != from {
		t.log.Warn("messages were dropped", slog.String("from", from), slog.String("source", b.SourceAddress), slog.Any("error", err))
		return
	}
	t.handle(b)
}

// receiveChunk takes a part of a snapshot.
func (t wired) receiveChunk(from string, frame []byte) bool {
	var c raftpb.Chunk
	if err := c.Unmarshal(frame); err != nil {
		t.log.Warn("snapshot was refused", slog.String("from", from), slog.Any("error", err))
		return false
	}
	return t.chunk(c)
}

// GetConnection opens a stream of messages.
func (t wired) GetConnection(ctx context.Context, target string) (raftio.IConnection, error) {
	c, err := t.wire.Connect(ctx, target)
	if err != nil {
		return nil, err
	}
	return &messageConn{WireConn: c, acks: make(acks)}, nil
}

// GetSnapshotConnection opens a stream for one snapshot.
func (t wired) GetSnapshotConnection(ctx context.Context, target string) (raftio.ISnapshotConnection, error) {
	c, err := t.wire.ConnectSnapshot(ctx, target)
	if err != nil {
		return nil, err
	}
	return chunkConn{c}, nil
}

// messageConn carries batches of messages. It is used by one goroutine.
type messageConn struct {
	WireConn

	acks acks
}

// SendMessageBatch sends one batch. An error makes dragonboat close the connection.
func (c *messageConn) SendMessageBatch(b raftpb.MessageBatch) error {
	if b.Requests = c.acks.news(b.Requests); len(b.Requests) == 0 {
		return nil
	}
	frame, err := b.Marshal()
	if err != nil {
		return fmt.Errorf("encode messages: %w", err)
	}
	return c.Send(frame)
}

// chunkConn carries the parts of a snapshot.
type chunkConn struct{ WireConn }

// SendChunk returns when the other host has taken the part.
func (c chunkConn) SendChunk(part raftpb.Chunk) error {
	frame, err := part.Marshal()
	if err != nil {
		return fmt.Errorf("encode part of snapshot: %w", err)
	}
	return c.Send(frame)
}

// registryFactory makes the address book that dragonboat asks. Members are named
// by NodeHostID, so that addresses may change.
type registryFactory struct {
	resolve func(nodeHostID string) (string, bool)
	// streams is how many connections there are to each host, as many as workers that write the log: what one of these
	// has to say to a host for all its shards at a time goes in one message.
	streams uint64
}

// Create returns an empty address book.
func (f registryFactory) Create(string, uint64, config.TargetValidator) (raftio.INodeRegistry, error) {
	return &registry{resolve: f.resolve, streams: f.streams, targets: make(map[member]string)}, nil
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
