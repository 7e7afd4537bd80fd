package shard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// Logs of versions that knew no shapes begin with the commands of a shard that owns
// everything. They apply as they did then; what is new waits for the first shape.
func TestLogWithoutBirth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd := c.nodes[0]
		if err := nd.r.AwaitServing(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Straight into the log, as what an earlier version has put there.
		replay := func(kind Kind, request proto.Message) any {
			t.Helper()
			payload, err := proto.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			result, err := nd.r.Propose(t.Context(), raft.Kind(kind), payload)
			if err != nil {
				t.Fatal(err)
			}
			return result
		}
		replay(KindLeaseGrant, &pb.LeaseGrantRequest{ID: 7, TTL: 100})
		result := replay(KindPut, &pb.PutRequest{Key: []byte("k"), Value: []byte("v"), Lease: 7})
		if r, ok := result.(*pb.PutResponse); !ok || r.Header.Revision != 2 {
			t.Errorf("replayed put: %v", result)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := nd.data.Write(ctx, nil, KindPut, &pb.PutRequest{Key: []byte("k")}); !errors.Is(err, raft.ErrNotLeader) {
			t.Errorf("put before the first shape: %v", err)
		}
		if _, err := nd.data.Write(ctx, &Guard{}, KindPut, &pb.PutRequest{Key: []byte("k")}); !errors.Is(err, raft.ErrNotLeader) {
			t.Errorf("guarded put before the first shape: %v", err)
		}
		c.shape(nd)
		if rev := nd.put(t, "l", 7); rev != 3 {
			t.Errorf("put after the first shape at revision %d", rev)
		}
	})
}
