package raft

import (
	"context"
	"log/slog"
	"testing"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftpb"
)

// loop is a wire from one host to itself, which calls it by another name.
type loop struct {
	name    string
	message func(string, []byte)
	chunk   func(string, []byte) bool
}

func (l *loop) Listen(message func(string, []byte), chunk func(string, []byte) bool) {
	l.message, l.chunk = message, chunk
}

func (l *loop) StopListening() { l.message, l.chunk = nil, nil }

func (l *loop) Connect(context.Context, string) (WireConn, error) {
	return loopConn(func(b []byte) error {
		l.message(l.name, b)
		return nil
	}), nil
}

func (l *loop) ConnectSnapshot(context.Context, string) (WireConn, error) {
	return loopConn(func(b []byte) error {
		if !l.chunk(l.name, b) {
			return errNoPeers
		}
		return nil
	}), nil
}

type loopConn func([]byte) error

func (c loopConn) Send(b []byte) error { return c(b) }

func (c loopConn) Close() {}

// Messages that say to be of another host than the one that sent them are dropped.
func TestForeignMessagesAreDropped(t *testing.T) {
	wire := &loop{name: "a"}
	var batches []raftpb.MessageBatch
	var chunks []raftpb.Chunk
	transport := wired{wire: wire, log: slog.New(slog.DiscardHandler)}.Create(config.NodeHostConfig{},
		func(b raftpb.MessageBatch) { batches = append(batches, b) },
		func(c raftpb.Chunk) bool {
			chunks = append(chunks, c)
			return c.ChunkId == 0
		})
	if err := transport.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := transport.GetConnection(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"a", "b", ""} {
		batch := raftpb.MessageBatch{SourceAddress: source, Requests: []raftpb.Message{{ShardID: 7, From: 3}}}
		if err := conn.SendMessageBatch(batch); err != nil {
			t.Fatal(err)
		}
	}
	wire.message("a", []byte{0xff})
	if len(batches) != 1 || batches[0].SourceAddress != "a" || batches[0].Requests[0].ShardID != 7 {
		t.Errorf("these arrived: %+v", batches)
	}
	parts, err := transport.GetSnapshotConnection(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(2) {
		err := parts.SendChunk(raftpb.Chunk{ChunkId: id, ShardID: 7})
		if taken := err == nil; taken != (id == 0) {
			t.Errorf("part %d: %v", id, err)
		}
	}
	if wire.chunk("a", []byte{0xff}) || len(chunks) != 2 || chunks[1].ShardID != 7 {
		t.Errorf("these parts arrived: %+v", chunks)
	}
	if err := transport.Close(); err != nil || wire.message != nil {
		t.Errorf("the transport was closed: %v", err)
	}
}

// The shards of a worker that writes the log share a connection to each host.
func TestShardsOfAWorkerShareAConnection(t *testing.T) {
	const workers = 2
	book, err := registryFactory{resolve: func(host string) (string, bool) { return "at " + host, true }, streams: workers}.Create("", 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	const shards = 8
	connections := make(map[string]uint64)
	for shard := range uint64(shards) {
		book.Add(shard, 1, "a")
		_, key, err := book.Resolve(shard, 1)
		if err != nil {
			t.Fatal(err)
		}
		if worker, known := connections[key]; known && worker != shard%workers {
			t.Errorf("shard %d shares a connection with those of another worker", shard)
		}
		connections[key] = shard % workers
	}
	if len(connections) != workers {
		t.Errorf("%d connections for the shards of %d workers", len(connections), workers)
	}
}
