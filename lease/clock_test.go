package lease

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestClockTranscripts plays the transcripts of testdata/clock. The harness
// keeps the time: "at" sets it without a firing, "run" fires every tick up to a
// moment and, unless "silent", tells what became due; "fire" fires once.
func TestClockTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/clock", func(t *testing.T, path string) {
		t.Helper()
		h := &clockHarness{t: t}
		datadriven.RunTest(t, path, h.run)
	})
}

type clockHarness struct {
	t     *testing.T
	clock *Clock
	tick  time.Duration
	now   time.Duration
}

func (h *clockHarness) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	h.t = t
	var out strings.Builder
	switch d.Cmd {
	case "new":
		h.tick = h.duration(d, "tick")
		h.clock = NewClock(h.tick)
	case "start":
		h.clock.Start(h.now, h.records(d))
	case "at":
		h.now = h.moment(d)
	case "fire":
		h.now = h.moment(d)
		h.clock.Advance(h.now)
	case "run":
		until := h.moment(d)
		for h.now+h.tick <= until {
			h.now += h.tick
			h.clock.Advance(h.now)
			if !d.HasArg("silent") {
				h.report(&out)
			}
		}
	case "grant":
		var ttl int64
		d.ScanArgs(t, "ttl", &ttl)
		h.clock.Grant(h.now, h.id(d), ttl)
	case "renew":
		r := h.clock.Renew(h.now, h.id(d))
		fmt.Fprint(&out, r.Status)
		if r.Status == Aged {
			fmt.Fprintf(&out, " mark=%d", r.Mark)
		}
		fmt.Fprintln(&out)
	case "fresh":
		var mark uint32
		d.ScanArgs(t, "mark", &mark)
		h.clock.Fresh(h.id(d), mark)
		fmt.Fprintf(&out, "needs fresh: %t\n", h.clock.needsFresh(h.id(d)))
	case "due":
		fmt.Fprintln(&out, h.clock.Due(h.limit(d)))
	case "aging":
		fmt.Fprintln(&out, h.clock.AgingDue(h.limit(d)))
	case "withdraw":
		h.clock.Withdraw(h.id(d))
	case "remove":
		h.clock.Remove(h.id(d))
	case "remaining":
		left, ok := h.clock.Remaining(h.now, h.id(d))
		fmt.Fprintf(&out, "%v %t ending=%t\n", left, ok, h.clock.Ending(h.id(d)))
	case "len":
		fmt.Fprintln(&out, h.clock.Len())
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	if out.Len() == 0 {
		return "ok\n"
	}
	return out.String()
}

// report appends what is due after a firing, as the leader would propose it.
func (h *clockHarness) report(out *strings.Builder) {
	if a := h.clock.AgingDue(100); len(a) > 0 {
		fmt.Fprintf(out, "%v aging %v\n", h.now, a)
	}
	if d := h.clock.Due(100); len(d) > 0 {
		fmt.Fprintf(out, "%v due %v\n", h.now, d)
	}
}

func (h *clockHarness) id(d *datadriven.TestData) int64 {
	var id int64
	d.ScanArgs(h.t, "id", &id)
	return id
}

func (h *clockHarness) limit(d *datadriven.TestData) int {
	limit := 100
	d.MaybeScanArgs(h.t, "limit", &limit)
	return limit
}

func (h *clockHarness) duration(d *datadriven.TestData, key string) time.Duration {
	var s string
	d.ScanArgs(h.t, key, &s)
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(h.t, "%s: %v", key, err)
	}
	return v
}

// moment reads "t=<duration>" or "after=<duration>".
func (h *clockHarness) moment(d *datadriven.TestData) time.Duration {
	if d.HasArg("after") {
		return h.now + h.duration(d, "after")
	}
	return h.duration(d, "t")
}

// records reads one lease a line: id ttl [aging=<duration>] [ending].
func (h *clockHarness) records(d *datadriven.TestData) []Record {
	var records []Record
	for line := range strings.Lines(d.Input) {
		var r Record
		fields := strings.Fields(line)
		if _, err := fmt.Sscan(line, &r.ID, &r.TTL); err != nil {
			d.Fatalf(h.t, "record %q: %v", line, err)
		}
		for _, f := range fields[2:] {
			if s, ok := strings.CutPrefix(f, "aging="); ok {
				v, err := time.ParseDuration(s)
				if err != nil {
					d.Fatalf(h.t, "record %q: %v", line, err)
				}
				r.Aging = v
			}
			r.Ending = r.Ending || f == "ending"
		}
		records = append(records, r)
	}
	return records
}

const testTick = 100 * time.Millisecond

// A client renews a lease every 0.8 TTL; in the middle the server stands still
// for 30 s. The renewals sent meanwhile are read only after the first firing,
// the worst order there is. The lease must never be due, neither at once nor
// while lost time could be caught up.
func TestClockStallKeepsRenewedLease(t *testing.T) {
	const (
		ttl    = 5
		period = 4 * time.Second
		stall  = 30 * time.Second
		end    = 5 * time.Minute
	)
	for from := time.Duration(0); from < 10*time.Second; from += 130 * time.Millisecond {
		c := NewClock(testTick)
		c.Start(0, nil)
		c.Grant(0, 1, ttl)
		sent := time.Duration(0) // when the client last sent a renewal
		for now := testTick; now < end; now += testTick {
			if now > from && now < from+stall {
				continue // the process stands still
			}
			c.Advance(now)
			if due := c.Due(1); len(due) != 0 {
				t.Fatalf("stall from %v: lease due at %v, last renewal sent at %v", from, now, sent)
			}
			if now-sent >= period {
				sent = now
				if r := c.Renew(now, 1); r.Status != Live {
					t.Fatalf("stall from %v: renewal at %v found the lease %v", from, now, r.Status)
				}
			}
		}
	}
}

// A paused process ends nobody's lease when it wakes. Who stays silent then ends
// a little later, and the pause itself counts for nobody.
func TestClockPauseThenSilence(t *testing.T) {
	c := NewClock(testTick)
	records := make([]Record, 1000, 1001)
	for i := range records {
		records[i] = Record{ID: int64(i), TTL: 10}
	}
	records = append(records, Record{ID: 5001, TTL: 60})
	c.Start(0, records)
	now := time.Duration(0)
	fire := func(d time.Duration) {
		now += d
		c.Advance(now)
	}
	for range 99 {
		fire(testTick)
	}
	fire(time.Hour)
	for range 3 {
		if due := c.Due(1001); len(due) != 0 {
			t.Fatalf("%d leases due %v after the wake-up", len(due), now)
		}
		fire(testTick)
	}
	for id := range int64(500) {
		c.Renew(now, id*2)
	}
	due := c.Due(1001)
	if len(due) != 500 || slices.Contains(due, 5001) || slices.ContainsFunc(due, func(id int64) bool { return id%2 == 0 }) {
		t.Fatalf("%d leases due after the grace, want the 500 that were near their end and not renewed", len(due))
	}
}

// 100,000 leases that end together are handed out in batches that the caller
// bounds, each exactly once.
func TestClockManyEndTogether(t *testing.T) {
	const n, batch = 100_000, 4096
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{ID: int64(i), TTL: 5}
	}
	c := NewClock(testTick)
	c.Start(0, records)
	now := time.Duration(0)
	for now < 5*time.Second {
		if due := c.Due(batch); len(due) != 0 {
			t.Fatalf("%d leases due at %v", len(due), now)
		}
		now += testTick
		c.Advance(now)
	}
	seen := make(map[int64]bool, n)
	batches := 0
	for {
		due := c.Due(batch)
		if len(due) == 0 {
			break
		}
		batches++
		if len(due) > batch {
			t.Fatalf("batch of %d", len(due))
		}
		for _, id := range due {
			if seen[id] {
				t.Fatalf("lease %d handed out twice", id)
			}
			seen[id] = true
		}
		c.Remove(due...)
	}
	if want := (n + batch - 1) / batch; len(seen) != n || batches != want || c.Len() != 0 {
		t.Fatalf("%d leases in %d batches, %d left, want %d in %d", len(seen), batches, c.Len(), n, want)
	}
}

func TestClockLongestTTL(t *testing.T) {
	c := NewClock(testTick)
	c.Start(0, nil)
	for id, ttl := range []int64{9_000_000_000, 1 << 62} {
		c.Grant(0, int64(id), ttl)
	}
	c.Grant(0, 2, -1)
	for now := testTick; now < time.Minute; now += testTick {
		c.Advance(now)
		c.Renew(now, 1)
	}
	if due := c.Due(10); !slices.Equal(due, []int64{2}) {
		t.Errorf("due %v, want only the lease with a negative TTL", due)
	}
}

// The clock's queues hold nothing of leases that are gone.
func TestClockForgets(t *testing.T) {
	c := NewClock(testTick)
	c.Start(0, nil)
	for id := range int64(10_000) {
		c.Grant(0, id, 9_000_000_000)
		c.Renew(0, id)
		c.Remove(id)
	}
	if c.Len() != 0 || len(c.ends.timers) != 0 || len(c.ages.timers) != 0 {
		t.Errorf("%d leases, %d and %d timers left", c.Len(), len(c.ends.timers), len(c.ages.timers))
	}
}

// needsFresh reports whether a remainder of lease id may stand in the log.
func (c *Clock) needsFresh(id int64) bool {
	t, ok := c.timers[id]
	return ok && t.aged
}
