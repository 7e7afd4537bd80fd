package mvcc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestStats(t *testing.T) {
	e := memEnv(t)
	op := func(req *pb.PutRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: req}}
	}
	g := e.s.NewGroup()
	defer g.Close()
	want := Stats{Compacted: -1}
	for _, step := range []struct {
		name string
		do   func()
		then func()
	}{
		{"nothing", func() {}, func() {}},
		{"put", func() { e.put("a", "12345") }, func() { want.Keys, want.Puts, want.PutBytes = 1, 1, 6 }},
		{"range", func() { e.mustGet(&pb.RangeRequest{Key: []byte("a")}) }, func() { want.Ranges = 1 }},
		{"delete of nothing", func() { e.del("b", "") }, func() { want.Deletes = 1 }},
		{"transaction of one", func() {
			_, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op(&pb.PutRequest{Key: []byte("a")})}})
			fatal(t, err)
		}, func() { want.Puts, want.PutBytes = 2, 7 }},
		{"nested transaction of two", func() {
			nested := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
				Success: []*pb.RequestOp{op(&pb.PutRequest{Key: []byte("b")}), op(&pb.PutRequest{Key: []byte("c")})},
			}}}
			_, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{nested}})
			fatal(t, err)
		}, func() { want.Puts, want.PutBytes, want.Txns, want.Keys = 4, 9, 1, 3 }},
		{"lagging watcher", func() { g.Add(1, WatchOptions{Key: []byte("a"), Start: 1}) }, func() { want.Lagging = 1 }},
		{"watcher that caught up", func() {
			for {
				if _, ok, err := g.Poll(); !ok {
					fatal(t, err)
					return
				}
			}
		}, func() { want.Lagging = 0 }},
		{"event", func() { e.put("a", "") }, func() { want.Queued, want.Puts, want.PutBytes = 1, 5, 10 }},
		{"event polled", func() { g.Poll() }, func() { want.Queued = 0 }},
		{"event of a removed watcher", func() {
			e.put("a", "")
			g.Remove(1)
		}, func() { want.Puts, want.PutBytes = 6, 11 }},
		{"compaction", func() { fatal(t, e.compact(e.s.Rev())) }, func() { want.Compacted = e.s.Rev() }},
		{"sweep", e.sweepAll, func() { want.Swept = 3 }},
	} {
		step.do()
		step.then()
		if diff := cmp.Diff(want, e.s.Stats()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

func fatal(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
