package raft_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/shard"
)

// counter is an oracle that always leads.
type counter struct{ last int64 }

func (o *counter) Ask(_ context.Context, count int, _ raft.Leading) (raft.Block, error) {
	b := raft.Block{First: o.last + 1, Newest: o.last + int64(count), Compacted: -1}
	o.last = b.Newest
	return b, nil
}

func (*counter) Prove(_ context.Context, claims []raft.Claim) (raft.Since, []bool, error) {
	return raft.Since{}, make([]bool, len(claims)), nil
}

// startData starts an ordered data shard of one node, which ends with the test.
func startData(t *testing.T) (*raft.Host, *shard.Data) {
	t.Helper()
	fs := pvfs.NewMem()
	db, err := pebble.Open("state", raft.StateOptions(fs, nil))
	if err != nil {
		t.Fatal(err)
	}
	const self = "00000000-0000-4000-8000-000000000001"
	host, err := raft.OpenHost(raft.HostConfig{
		Dir: "/raft", Name: "test", NodeHostID: self, Address: "self",
		Resolve:      func(string) (string, bool) { return "self", true },
		DeploymentID: 7, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 2, ElectionTicks: 20,
		DB: db, Syncer: raft.NewSyncer(db), StateFS: fs, TempDir: "tmp", RaftFS: vfs.NewMem(),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := shard.Start(host, shard.DataConfig{ShardID: 1, ReplicaID: 1, Members: map[uint64]string{1: self}, Oracle: &counter{last: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		d.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Replica().AwaitServing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.GiveShape(t.Context(), shard.Shape{Ordered: true, Owned: keys.NewSet(keys.Span{})}); err != nil {
		t.Fatal(err)
	}
	return host, d
}

// A process that stood still for 30 s forgets them: a lease that is renewed every 0.8
// of its TTL afterwards lives on, whenever its client is heard of first.
func TestStallThenSlowRenewals(t *testing.T) {
	for _, silence := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			host, d := startData(t)
			const id, ttl = 7, 5
			if _, err := d.Write(t.Context(), nil, shard.KindLeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: ttl}); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Renew(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			// No tick reaches the leader's clock.
			hear := raft.Deafen(host, d.Replica())
			time.Sleep(30 * time.Second)
			hear()
			time.Sleep(silence)
			for i := range 20 {
				left, err := d.Renew(t.Context(), id)
				if err != nil || left != ttl {
					t.Fatalf("%v after the stall, renewal %d: %d, %v", silence, i, left, err)
				}
				time.Sleep(ttl * time.Second * 8 / 10)
			}
		})
	}
}
