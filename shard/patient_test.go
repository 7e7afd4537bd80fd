package shard

import (
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// place is how package lock and etcd's Mutex ask for the lock "l".
func place(key string) *pb.TxnRequest {
	first := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte("l/"), RangeEnd: []byte("l0"), Limit: 1, SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND,
	}}}
	return &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte(key), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}, first},
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}, first},
	}
}

// A place in a queue has an entry of its own if it is the first, and else goes with what comes next.
func TestPlaceGoesWithTheNextEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		enter := func(key string) <-chan error {
			entered := make(chan error, 1)
			go func() {
				_, err := nd.data.Write(t.Context(), nil, KindTxn, place(key))
				entered <- err
			}()
			synctest.Wait()
			return entered
		}
		index := nd.data.Replica().Applied()
		first := enter("l/1")
		if now := nd.data.Replica().Applied(); now != index+1 {
			t.Fatalf("%d entries for the first place", now-index)
		}
		second := enter("l/2")
		if now := nd.data.Replica().Applied(); now != index+1 {
			t.Fatal("the second place has not waited")
		}
		nd.put(t, "k", 0)
		if now := nd.data.Replica().Applied(); now != index+2 {
			t.Fatalf("%d entries", now-index)
		}
		for _, entered := range []<-chan error{first, second} {
			if err := <-entered; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Other transactions are in a hurry.
func TestStandsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.put(t, "l/1", 0)
		changed := func(change func(*pb.TxnRequest)) proto.Message {
			r := place("l/2")
			change(r)
			return r
		}
		look := func(r *pb.TxnRequest) *pb.RangeRequest { return r.Success[1].GetRequestRange() }
		for name, request := range map[string]proto.Message{
			"no transaction":     &pb.PutRequest{Key: []byte("l/2")},
			"nothing compared":   changed(func(r *pb.TxnRequest) { r.Compare = nil }),
			"another compared":   changed(func(r *pb.TxnRequest) { r.Compare[0].Key = []byte("l/3") }),
			"a key that is":      changed(func(r *pb.TxnRequest) { r.Compare[0].Result = pb.Compare_GREATER }),
			"a value compared":   changed(func(r *pb.TxnRequest) { r.Compare[0].Target = pb.Compare_VALUE }),
			"keys compared":      changed(func(r *pb.TxnRequest) { r.Compare[0].RangeEnd = []byte("l/3") }),
			"nothing looked for": changed(func(r *pb.TxnRequest) { r.Success = r.Success[:1] }),
			"nothing put":        changed(func(r *pb.TxnRequest) { r.Success[0] = r.Failure[0] }),
			"the last looked for": changed(func(r *pb.TxnRequest) {
				look(r).SortOrder = pb.RangeRequest_DESCEND
			}),
			"all looked for":      changed(func(r *pb.TxnRequest) { look(r).Limit = 0 }),
			"in order of keys":    changed(func(r *pb.TxnRequest) { look(r).SortTarget = pb.RangeRequest_KEY }),
			"a look elsewhere":    changed(func(r *pb.TxnRequest) { look(r).Key, look(r).RangeEnd = []byte("m/"), []byte("m0") }),
			"nobody in the queue": changed(func(r *pb.TxnRequest) { *r = *place("l/2"); look(r).Key = []byte("l/2") }),
		} {
			if nd.data.standsBehind(t.Context(), request) {
				t.Errorf("%s: waits", name)
			}
		}
		if !nd.data.standsBehind(t.Context(), place("l/2")) {
			t.Error("a second place does not wait")
		}
	})
}
