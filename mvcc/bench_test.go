package mvcc

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// bulkPut puts n keys in batches.
func bulkPut(b *testing.B, e *env, n int, key func(i int) []byte, value []byte) {
	b.Helper()
	for i := 0; i < n; {
		e.apply(func(w *Writer) {
			for range min(n-i, 1000) {
				if _, err := w.Put(&pb.PutRequest{Key: key(i), Value: value}, Opts{}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func benchEnv(b *testing.B) *env {
	b.Helper()
	e := &env{t: b, fs: vfs.NewMem(), leases: fakeLeases{attached: make(map[string]int64)}, memTable: 256 << 20, cache: 256 << 20}
	e.open()
	b.Cleanup(e.close)
	return e
}

// lockTxn is what concurrency.Mutex sends to enter a lock's queue.
func lockTxn(dir string, key []byte) *pb.TxnRequest {
	get := opRange(&pb.RangeRequest{Key: key})
	owner := opRange(firstCreated(dir))
	return &pb.TxnRequest{
		Compare: []*pb.Compare{{Target: pb.Compare_CREATE, Key: key}},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key}}}, owner},
		Failure: []*pb.RequestOp{get, owner},
	}
}

func firstCreated(dir string) *pb.RangeRequest {
	end := []byte(dir)
	end[len(end)-1]++
	return &pb.RangeRequest{Key: []byte(dir), RangeEnd: end, SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND, Limit: 1}
}

var waiters = []int{10, 100, 1000, 10_000}

// BenchmarkDirectory measures what a lock costs beside how many wait for it:
// the first owner, the one before a waiter, and entering and leaving the queue.
func BenchmarkDirectory(b *testing.B) {
	for _, n := range waiters {
		setup := func(b *testing.B) *env {
			b.Helper()
			e := benchEnv(b)
			bulkPut(b, e, n, func(i int) []byte { return fmt.Appendf(nil, "lock/%016x", i*7919) }, nil)
			// Others have locks too.
			bulkPut(b, e, 20_000, func(i int) []byte { return fmt.Appendf(nil, "other%d/%016x", i%100, i) }, nil)
			v := e.s.View()
			if _, err := v.Range(background, firstCreated("lock/")); err != nil {
				b.Fatal(err)
			}
			v.Close()
			for !e.s.creations.whole {
				e.put("other", "")
			}
			return e
		}
		b.Run(fmt.Sprintf("first/waiters=%d", n), func(b *testing.B) {
			e := setup(b)
			v := e.s.View()
			defer v.Close()
			req := firstCreated("lock/")
			b.ReportAllocs()
			for b.Loop() {
				if resp, err := v.Range(background, req); err != nil || resp.Count != int64(n) || len(resp.Kvs) != 1 {
					b.Fatal(resp, err)
				}
			}
		})
		b.Run(fmt.Sprintf("before/waiters=%d", n), func(b *testing.B) {
			e := setup(b)
			v := e.s.View()
			defer v.Close()
			req := firstCreated("lock/")
			req.SortOrder = pb.RangeRequest_DESCEND
			req.MaxCreateRevision = int64(n/2 + 1)
			b.ReportAllocs()
			for b.Loop() {
				if resp, err := v.Range(background, req); err != nil || resp.Count != int64(n) || resp.Kvs[0].CreateRevision != req.MaxCreateRevision {
					b.Fatal(resp, err)
				}
			}
		})
		b.Run(fmt.Sprintf("acquire/waiters=%d", n), func(b *testing.B) {
			e := setup(b)
			key := []byte("lock/fffffff")
			b.ReportAllocs()
			for b.Loop() {
				e.apply(func(w *Writer) {
					if resp, err := w.Txn(lockTxn("lock/", key), Opts{Want: true}); err != nil || !resp.Succeeded {
						b.Fatal(resp, err)
					}
					if _, err := w.DeleteRange(&pb.DeleteRangeRequest{Key: key}, Opts{Want: true}); err != nil {
						b.Fatal(err)
					}
				})
			}
		})
	}
}

// BenchmarkPut measures puts in batches of different size, to new keys and to
// existing ones among 100,000.
func BenchmarkPut(b *testing.B) {
	value := make([]byte, 100)
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			e := benchEnv(b)
			const n = 100_000
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "key/%08d", i*7919%n)
			}
			bulkPut(b, e, n, func(i int) []byte { return keys[i] }, value)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				batch := e.db.NewBatch()
				w := e.s.NewWriter(batch, &e.leases)
				for range size {
					if _, err := w.Put(&pb.PutRequest{Key: keys[i%n], Value: value}, Opts{Want: true}); err != nil {
						b.Fatal(err)
					}
					i += 31
				}
				e.commit(w)
				batch.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/put")
		})
	}
}

func BenchmarkRangePoint(b *testing.B) {
	for _, size := range []int{16, 512} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			e := benchEnv(b)
			const n = 100_000
			bulkPut(b, e, n, func(i int) []byte { return fmt.Appendf(nil, "key/%08d", i) }, make([]byte, size))
			if err := e.db.Flush(); err != nil {
				b.Fatal(err)
			}
			req := &pb.RangeRequest{}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				req.Key = fmt.Appendf(req.Key[:0], "key/%08d", i*7919%n)
				i++
				v := e.s.View()
				resp, err := v.Range(background, req)
				v.Close()
				if err != nil || len(resp.Kvs) != 1 {
					b.Fatal(resp, err)
				}
			}
		})
	}
}

func BenchmarkRangePage(b *testing.B) {
	e := benchEnv(b)
	const n = 100_000
	bulkPut(b, e, n, func(i int) []byte { return fmt.Appendf(nil, "key/%08d", i) }, make([]byte, 16))
	v := e.s.View()
	defer v.Close()
	req := &pb.RangeRequest{Key: []byte("key/"), RangeEnd: []byte("key0"), Limit: 100}
	b.ReportAllocs()
	for b.Loop() {
		if resp, err := v.Range(background, req); err != nil || len(resp.Kvs) != 100 || resp.Count != n {
			b.Fatal(resp, err)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			e := benchEnv(b)
			bulkPut(b, e, n, func(i int) []byte { return fmt.Appendf(nil, "key/%08d", i) }, nil)
			v := e.s.View()
			defer v.Close()
			req := &pb.RangeRequest{Key: []byte("key/"), RangeEnd: []byte("key0"), CountOnly: true}
			b.ReportAllocs()
			for b.Loop() {
				if resp, err := v.Range(background, req); err != nil || resp.Count != int64(n) {
					b.Fatal(resp, err)
				}
			}
		})
	}
}

// BenchmarkFanOut measures one put that many watchers of one key or prefix see,
// up to the batches being polled.
func BenchmarkFanOut(b *testing.B) {
	for _, end := range []string{"", "kez"} {
		for _, n := range []int{1, 500, 10_000} {
			b.Run(fmt.Sprintf("end=%q/watchers=%d", end, n), func(b *testing.B) {
				e := benchEnv(b)
				groups := make([]*Group, 10)
				for i := range groups {
					groups[i] = e.s.NewGroup()
				}
				for i := range n {
					groups[i%10].Add(int64(i), WatchOptions{Key: []byte("key"), End: []byte(end)})
				}
				req := &pb.PutRequest{Key: []byte("key"), Value: make([]byte, 100)}
				b.ReportAllocs()
				for b.Loop() {
					e.apply(func(w *Writer) {
						if _, err := w.Put(req, Opts{}); err != nil {
							b.Fatal(err)
						}
					})
					got := 0
					for _, g := range groups {
						for {
							_, ok, err := g.Poll()
							if err != nil {
								b.Fatal(err)
							}
							if !ok {
								break
							}
							got++
						}
					}
					if got != n {
						b.Fatalf("%d events", got)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
			})
		}
	}
}

// BenchmarkIdleWatchers measures a put beside 100,000 watchers of other keys.
func BenchmarkIdleWatchers(b *testing.B) {
	e := benchEnv(b)
	g := e.s.NewGroup()
	defer g.Close()
	for i := range int64(100_000) {
		o := WatchOptions{Key: fmt.Appendf(nil, "dir/%08d", i)}
		if i%2 == 0 {
			o.Key, o.End = append(o.Key, '/'), append(o.Key, '0')
		}
		g.Add(i, o)
	}
	req := &pb.PutRequest{Key: []byte("key"), Value: make([]byte, 100)}
	b.ReportAllocs()
	for b.Loop() {
		e.apply(func(w *Writer) {
			if _, err := w.Put(req, Opts{}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkHolds measures what a command costs that may meet a hold, and a hold that comes and goes, beside how
// many there are.
func BenchmarkHolds(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		e := benchEnv(b)
		hold := func(w *Writer, i int) {
			key := func(kind string) keys.Set {
				return keys.NewSet(keys.Point(fmt.Appendf(nil, "bench/%06x/%s", i*7919, kind)))
			}
			if err := w.Hold(fmt.Sprintf("%024d", i), 0, key("read"), key("written")); err != nil {
				b.Fatal(err)
			}
		}
		e.apply(func(w *Writer) {
			for i := range n {
				hold(w, i)
			}
		})
		point := []keys.Span{keys.Point([]byte("bench/other"))}
		b.Run(fmt.Sprintf("met/%d", n), func(b *testing.B) {
			for b.Loop() {
				if len(e.s.Met(nil, point)) > 0 {
					b.Fatal("met a hold")
				}
			}
		})
		b.Run(fmt.Sprintf("hold/%d", n), func(b *testing.B) {
			for b.Loop() {
				e.apply(func(w *Writer) { hold(w, n) })
				e.apply(func(w *Writer) {
					if err := w.Release(fmt.Sprintf("%024d", n)); err != nil {
						b.Fatal(err)
					}
				})
			}
		})
	}
}
