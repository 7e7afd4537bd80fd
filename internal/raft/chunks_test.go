package raft

import (
	"testing"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// chunkTaker is a transport of which only the handler of snapshots' parts is of interest.
type chunkTaker struct {
	config.TransportFactory
	take raftio.ChunkHandler
}

func (t *chunkTaker) Create(_ config.NodeHostConfig, _ raftio.MessageHandler, take raftio.ChunkHandler) raftio.ITransport {
	t.take = take
	return nil
}

// Parts of snapshots reach dragonboat only when it has started their replica: at the start it removes the
// folder that it is writing them to.
func TestPartsOfSnapshotsWaitForTheStart(t *testing.T) {
	wire := &chunkTaker{}
	started := false
	b := &inbox{TransportFactory: wire, started: func(shardID, replicaID uint64) bool {
		return started && shardID == 2 && replicaID == 3
	}}
	taken := 0
	b.Create(config.NodeHostConfig{}, nil, func(raftpb.Chunk) bool { taken++; return true })
	part := raftpb.Chunk{ShardID: 2, ReplicaID: 3}
	if wire.take(part) || taken != 0 {
		t.Error("a part was taken before its replica was started")
	}
	started = true
	if !wire.take(part) || taken != 1 {
		t.Error("a part was refused behind the start of its replica")
	}
	if part.ReplicaID = 4; wire.take(part) || taken != 1 {
		t.Error("a part for another replica was taken")
	}
}
