package sim

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Of two calls of unknown outcome that may have deleted a key the one that began first has, although it ended last: the
// other began when what came behind had been answered.
func TestDeletionIsOfWhoBeganFirst(t *testing.T) {
	put := func(key string, rev int64) *mvccpb.Event {
		return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(key), CreateRevision: rev, ModRevision: rev, Version: 1}}
	}
	deleted := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("a"), ModRevision: 3}}
	all, err := newTruth([]*mvccpb.Event{put("a", 2), deleted, put("b", 4)})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{node: &node{id: 1}}
	did := func(begin, end int64, key string, rev int64) *op {
		return &op{
			p: p, begin: begin, end: end, outcome: answered, req: &pb.PutRequest{Key: []byte(key), Value: []byte(key)},
			resp: &pb.PutResponse{Header: &pb.ResponseHeader{Revision: rev}},
		}
	}
	lost := func(begin, end int64) *op {
		return &op{p: p, begin: begin, end: end, req: &pb.DeleteRangeRequest{Key: []byte("a")}}
	}
	k := &checker{tb: t, t: all, h: &history{ops: []*op{did(1, 2, "a", 2), did(4, 5, "b", 4), lost(6, 7), lost(3, 8)}}}
	k.check()
}
