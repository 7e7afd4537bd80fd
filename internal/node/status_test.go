package node

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The indexes of a status move with writes, with one data shard as etcd's do and with several
// as well.
func TestStatusMovesWithWrites(t *testing.T) {
	for _, flags := range [][]string{nil, {"--initial-splits", "b,c,d"}} {
		c := newCluster(t, 1, flags...)
		c.start(c.machines...)
		n := c.machines[0].node
		s := services{Router: n.router, node: n}
		before := s.Status()
		if before.RaftIndex != before.RaftAppliedIndex || before.RaftIndex == 0 {
			t.Errorf("at rest: %+v", before)
		}
		const writes = 5
		for range writes {
			_, err := n.router.Put(t.Context(), &pb.PutRequest{Key: []byte("c/1")})
			check(t, err)
		}
		after := s.Status()
		if got := after.RaftAppliedIndex - before.RaftAppliedIndex; got != writes {
			t.Errorf("%v: %d writes took the applied index %d further", flags, writes, got)
		}
		if after.RaftIndex != after.RaftAppliedIndex {
			t.Errorf("at rest after writes: %+v", after)
		}
	}
}
