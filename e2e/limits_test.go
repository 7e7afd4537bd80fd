package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// resident returns the memory that the process holds, in bytes.
func (p *process) resident() float64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return kib * 1024
		}
	}
	p.t.Fatal("the process shows no memory")
	return 0
}

// BenchmarkMemory prints what a server holds of memory when it is idle, with 1,000
// connections that watch a key each, with 10,000 watches more, after 200 MB were
// written, and after as much again that a client was owed and did not read.
func BenchmarkMemory(b *testing.B) {
	const mib = 1 << 20
	s := serve(b)
	ctx := b.Context()
	for b.Loop() {
		b.ReportMetric(s.resident()/mib, "MiB-idle")
		watchOn := func(c pb.WatchClient, keys int) {
			stream, err := c.Watch(ctx)
			if err != nil {
				b.Fatal(err)
			}
			w := &tape{t: b, stream: stream}
			for i := range keys {
				w.create(&pb.WatchCreateRequest{Key: fmt.Appendf(nil, "idle/%d", i)})
				w.created()
			}
		}
		for range 1000 {
			watchOn(pb.NewWatchClient(s.connect()), 1)
		}
		b.ReportMetric(s.resident()/mib, "MiB-1000-conns")
		for range 100 {
			watchOn(s.watch, 100)
		}
		b.ReportMetric(s.resident()/mib, "MiB-10000-watches")

		value := strings.Repeat("x", 10<<10)
		write := func() {
			for range 20_000 {
				s.put("large", value)
			}
		}
		write()
		b.ReportMetric(s.resident()/mib, "MiB-200-MB-written")
		lazy := s.openWatch()
		lazy.create(&pb.WatchCreateRequest{Key: []byte("large")})
		lazy.created()
		write()
		b.ReportMetric(s.resident()/mib, "MiB-200-MB-unread")
	}
}
