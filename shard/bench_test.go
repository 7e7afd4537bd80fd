package shard

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// encoded returns the command of a request.
func encoded(b *testing.B, kind Kind, request proto.Message) raft.Command {
	b.Helper()
	payload, err := proto.Marshal(request)
	if err != nil {
		b.Fatal(err)
	}
	return raft.Command{Kind: raft.Kind(kind), Compacted: -1, Payload: payload}
}

// BenchmarkApply measures what a node does with committed commands, from their
// encoded form to the state that readers see: puts of 256 bytes to keys among
// 10,000 in batches of different size, and transactions of 100 such puts. As on
// the leader, the answers are wanted.
func BenchmarkApply(b *testing.B) {
	const n = 10_000
	value := make([]byte, 256)
	key := func(i int) []byte { return fmt.Appendf(nil, "key/%08d", i*7919%n) }
	puts := func(b *testing.B) []raft.Command {
		b.Helper()
		commands := make([]raft.Command, n)
		for i := range commands {
			commands[i] = encoded(b, KindPut, &pb.PutRequest{Key: key(i), Value: value})
		}
		return commands
	}
	txns := func(b *testing.B) []raft.Command {
		b.Helper()
		commands := make([]raft.Command, n/100)
		for i := range commands {
			req := &pb.TxnRequest{}
			for j := range 100 {
				put := &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key(100*i + j), Value: value}}
				req.Success = append(req.Success, &pb.RequestOp{Request: put})
			}
			commands[i] = encoded(b, KindTxn, req)
		}
		return commands
	}
	for _, c := range []struct {
		name     string
		commands func(*testing.B) []raft.Command
		batch    int
	}{
		{"put/batch=1", puts, 1}, {"put/batch=16", puts, 16}, {"put/batch=100", puts, 100}, {"txn=100/batch=1", txns, 1},
	} {
		b.Run(c.name, func(b *testing.B) { benchApply(b, c.commands(b), c.batch) })
	}
}

func benchApply(b *testing.B, commands []raft.Command, batch int) {
	b.Helper()
	c := newDataCluster(b, 1)
	defer c.close()
	nd, _ := c.leader(0)
	apply := func(commands []raft.Command) {
		batch := nd.db.NewBatch()
		defer batch.Close()
		run := nd.data.Apply(batch)
		for _, c := range commands {
			if _, rejected, failed := run.Command(c, true); rejected != nil || failed != nil {
				b.Fatal(rejected, failed)
			}
		}
		if err := run.Finish(); err != nil {
			b.Fatal(err)
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
		run.Publish()
	}
	apply(commands)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i+batch > len(commands) {
			i = 0
		}
		apply(commands[i : i+batch])
		i += batch
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/command")
}
