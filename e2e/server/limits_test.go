package server

import (
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// BenchmarkMemory prints what a server holds of memory when it is idle, with 1,000
// connections that watch a key each, with 10,000 watches more, after 200 MB were
// written, and after as much again that a client was owed and did not read.
func BenchmarkMemory(b *testing.B) {
	s := harness.Serve(b)
	ctx := b.Context()
	for b.Loop() {
		b.ReportMetric(float64(s.RSS())/harness.MiB, "MiB-idle")
		watchOn := func(c pb.WatchClient, keys int) {
			stream, err := c.Watch(ctx)
			if err != nil {
				b.Fatal(err)
			}
			w := &harness.WatchStream{T: b, Stream: stream}
			for i := range keys {
				w.Create(&pb.WatchCreateRequest{Key: fmt.Appendf(nil, "idle/%d", i)})
				w.Created()
			}
		}
		for range 1000 {
			watchOn(pb.NewWatchClient(s.Connect()), 1)
		}
		b.ReportMetric(float64(s.RSS())/harness.MiB, "MiB-1000-conns")
		for range 100 {
			watchOn(s.Watch, 100)
		}
		b.ReportMetric(float64(s.RSS())/harness.MiB, "MiB-10000-watches")

		value := strings.Repeat("x", 10<<10)
		write := func() {
			for range 20_000 {
				s.Put("large", value)
			}
		}
		write()
		b.ReportMetric(float64(s.RSS())/harness.MiB, "MiB-200-MB-written")
		lazy := s.OpenWatch()
		lazy.Create(&pb.WatchCreateRequest{Key: []byte("large")})
		lazy.Created()
		write()
		b.ReportMetric(float64(s.RSS())/harness.MiB, "MiB-200-MB-unread")
	}
}
