package mvcc

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// nodeEnv is benchEnv with the sizes that a node gives its Pebble, so that not
// everything that is read is in memory.
func nodeEnv(b *testing.B) *env {
	b.Helper()
	e := &env{t: b, fs: vfs.NewMem(), leases: fakeLeases{attached: make(map[string]int64)}, memTable: 8 << 20, cache: 16 << 20}
	e.open()
	b.Cleanup(e.close)
	return e
}

// benchKey is the name of the i-th of n keys, which are written in another order.
func benchKey(i, n int) []byte { return fmt.Appendf(nil, "key/%08d", i*7919%n) }

func flush(b *testing.B, db *pebble.DB) {
	b.Helper()
	if err := db.Flush(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRange measures ranges of keys with values that are not kept in memory:
// whole ones and pages, of the newest state and of earlier ones.
//
//   - now: each key has one version.
//   - rewritten: each key has four, so that there is history between the keys.
//   - before: the same, read as of the first.
//   - behind: one key in a hundred has changed since.
func BenchmarkRange(b *testing.B) {
	for _, size := range []int{256, 1024} {
		for _, n := range []int{400, 10_000} {
			for _, limit := range []int{0, 500} {
				if limit > n {
					continue
				}
				for _, state := range []string{"now", "rewritten", "before", "behind"} {
					b.Run(fmt.Sprintf("value=%d/keys=%d/limit=%d/%s", size, n, limit, state), func(b *testing.B) {
						benchRange(b, n, size, limit, state)
					})
				}
			}
		}
	}
}

func benchRange(b *testing.B, n, size, limit int, state string) {
	b.Helper()
	e := nodeEnv(b)
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(i * i)
	}
	key := func(i int) []byte { return benchKey(i, n) }
	bulkPut(b, e, n, key, value)
	req := &pb.RangeRequest{Key: []byte("key/"), RangeEnd: []byte("key0"), Limit: int64(limit)}
	rev := e.s.Rev()
	switch state {
	case "rewritten", "before":
		for range 3 {
			bulkPut(b, e, n, key, value)
		}
	case "behind":
		bulkPut(b, e, n/100, key, value)
	}
	if state == "before" || state == "behind" {
		req.Revision = rev
	}
	flush(b, e.db)
	want := n
	if limit > 0 {
		want = limit
	}
	b.SetBytes(int64(want * size))
	b.ReportAllocs()
	cpu := meterCPU(b)
	for b.Loop() {
		v := e.s.View()
		resp, err := v.Range(background, req)
		v.Close()
		if err != nil || len(resp.Kvs) != want || resp.Count != int64(n) || len(resp.Kvs[want-1].Value) != size {
			b.Fatal(resp.GetCount(), len(resp.GetKvs()), err)
		}
	}
	cpu.report()
}

// BenchmarkRangeSorted measures a range in the order of revisions.
func BenchmarkRangeSorted(b *testing.B) {
	e := nodeEnv(b)
	const n = 1000
	bulkPut(b, e, n, func(i int) []byte { return benchKey(i, n) }, make([]byte, 256))
	flush(b, e.db)
	req := &pb.RangeRequest{Key: []byte("key/"), RangeEnd: []byte("key0"), SortTarget: pb.RangeRequest_MOD, SortOrder: pb.RangeRequest_DESCEND}
	b.ReportAllocs()
	cpu := meterCPU(b)
	for b.Loop() {
		v := e.s.View()
		resp, err := v.Range(background, req)
		v.Close()
		if err != nil || len(resp.Kvs) != n {
			b.Fatal(resp, err)
		}
	}
	cpu.report()
}

// BenchmarkTxnPuts measures a transaction of 100 puts to keys among 100,000.
func BenchmarkTxnPuts(b *testing.B) {
	e := nodeEnv(b)
	const n, ops = 100_000, 100
	value := make([]byte, 256)
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = benchKey(i, n)
	}
	bulkPut(b, e, n, func(i int) []byte { return keys[i] }, value)
	b.ReportAllocs()
	i := 0
	cpu := meterCPU(b)
	for b.Loop() {
		req := &pb.TxnRequest{Success: make([]*pb.RequestOp, ops)}
		for j := range req.Success {
			req.Success[j] = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: keys[i%n], Value: value}}}
			i += 31
		}
		e.apply(func(w *Writer) {
			if _, err := w.Txn(req, Opts{Want: true}); err != nil {
				b.Fatal(err)
			}
		})
	}
	cpu.report()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*ops), "ns/put")
}
