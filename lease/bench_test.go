package lease

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fill grants n leases, each with a key of 40 bytes, and starts a clock.
func fill(tb testing.TB, db *pebble.DB, n int64) (*Table, *Clock) {
	tb.Helper()
	table := openTable(tb, db, "m/")
	b := db.NewBatch()
	for id := range n {
		mustGrant(tb, table, b, id*0x9e3779b97f4a7c, 60)
		table.Attach(id*0x9e3779b97f4a7c, fmt.Appendf(nil, "locks/some-resource/%020d", id))
	}
	if err := b.Close(); err != nil {
		tb.Fatal(err)
	}
	c := NewClock(testTick)
	c.Start(0, table.All())
	return table, c
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bytesPerLease measures what a lease with one key takes in Table and Clock.
func bytesPerLease(tb testing.TB, n int64) float64 {
	tb.Helper()
	db := openDB(tb, vfs.NewMem())
	before := liveHeap()
	table, c := fill(tb, db, n)
	after := liveHeap()
	runtime.KeepAlive(table)
	runtime.KeepAlive(c)
	return float64(after-before) / float64(n)
}

func TestMemoryPerLease(t *testing.T) {
	const bound = 400
	if got := bytesPerLease(t, 100_000); got > bound {
		t.Errorf("a lease with one key takes %.0f bytes, more than %d", got, bound)
	}
}

func BenchmarkMemory(b *testing.B) {
	var got float64
	for b.Loop() {
		got = bytesPerLease(b, 100_000)
	}
	b.ReportMetric(got, "bytes/lease")
}

func BenchmarkRenew(b *testing.B) {
	for _, n := range []int64{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := NewClock(testTick)
			c.Start(0, nil)
			for id := range n {
				c.Grant(0, id, 60)
			}
			b.ReportAllocs()
			var now time.Duration
			var id int64
			for b.Loop() {
				now += 20 * time.Microsecond
				id = (id + 7919) % n
				c.Renew(now, id)
				if id%1000 == 0 {
					c.Advance(now)
					c.Due(1)
				}
			}
		})
	}
}

// BenchmarkTick measures one step of a clock with 100,000 leases, each of which is
// renewed every 20 s.
func BenchmarkTick(b *testing.B) {
	const n = 100_000
	c := NewClock(testTick)
	c.Start(0, nil)
	for id := range int64(n) {
		c.Grant(0, id, 60)
	}
	b.ReportAllocs()
	var now time.Duration
	var id int64
	for b.Loop() {
		now += testTick
		for range n * testTick / (20 * time.Second) {
			id = (id + 7919) % n
			c.Renew(now, id)
		}
		c.Advance(now)
		if due := c.Due(n); len(due) != 0 {
			b.Fatalf("%d leases end", len(due))
		}
	}
}

func BenchmarkStart(b *testing.B) {
	records := make([]Record, 1_000_000)
	for i := range records {
		records[i] = Record{ID: int64(i), TTL: int64(i%100) + 2}
	}
	c := NewClock(testTick)
	for b.Loop() {
		c.Start(0, records)
	}
}
