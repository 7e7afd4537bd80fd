package lease

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// clockModel is the clock as a map that is searched from end to end. Beside it,
// in real time, it keeps when each lease was last given its full TTL.
type clockModel struct {
	tick, fired, time, quiet time.Duration
	leases                   map[int64]*modelLease
}

type modelLease struct {
	id                   int64
	ttl, deadline, ageAt time.Duration
	inherited            bool
	mark                 uint32
	aged, ending         bool
	// renewed is the reading at the last renewal, held the time that the lease
	// was promised then.
	renewed, held time.Duration
}

func (m *clockModel) at(now time.Duration) time.Duration {
	return m.time + max(0, min(now-m.fired, 2*m.tick))
}

func (m *clockModel) renew(now time.Duration, l *modelLease) {
	l.deadline, l.ageAt, l.inherited = m.at(now)+l.ttl, l.ttl/2, false
	l.renewed, l.held = now, l.ttl
}

// ready returns the leases that want ready, in the order of the moment at.
func (m *clockModel) ready(limit int, want func(*modelLease) bool, at func(*modelLease) time.Duration) []*modelLease {
	if m.time < m.quiet {
		return nil
	}
	var ready []*modelLease
	for _, l := range m.leases {
		if !l.ending && want(l) && at(l) <= m.time {
			ready = append(ready, l)
		}
	}
	slices.SortFunc(ready, func(a, b *modelLease) int {
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a.id, b.id))
	})
	return ready[:min(limit, len(ready))]
}

func (m *clockModel) due(limit int) []*modelLease {
	return m.ready(limit,
		func(*modelLease) bool { return true },
		func(l *modelLease) time.Duration { return l.deadline })
}

func (m *clockModel) aging(limit int) []*modelLease {
	return m.ready(limit,
		func(l *modelLease) bool { return l.deadline-m.time >= minAgingTicks*m.tick },
		func(l *modelLease) time.Duration { return l.deadline - l.ageAt })
}

func TestClockModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tick := time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "tick"))
		c, m := NewClock(tick), &clockModel{tick: tick, leases: map[int64]*modelLease{}}
		var now time.Duration
		ids, limits := rapid.Int64Range(0, 5), rapid.IntRange(0, 4)
		ttls := rapid.OneOf(rapid.Int64Range(0, 4), rapid.Int64Range(5, 100))
		lease := func(t *rapid.T) (int64, *modelLease) {
			id := ids.Draw(t, "id")
			return id, m.leases[id]
		}
		actions := map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				var records []Record
				m.fired, m.time, m.quiet = now, 0, 0
				clear(m.leases)
				for _, id := range rapid.SliceOfDistinct(ids, rapid.ID[int64]).Draw(t, "ids") {
					r := Record{ID: id, TTL: ttls.Draw(t, "ttl"), Ending: rapid.IntRange(0, 4).Draw(t, "e") == 0}
					l := &modelLease{id: id, ttl: time.Duration(r.TTL) * time.Second, ending: r.Ending}
					if !r.Ending {
						m.renew(now, l)
					}
					if !r.Ending && rapid.Bool().Draw(t, "aging") {
						r.Aging = time.Duration(rapid.Int64Range(1, 60e9).Draw(t, "left"))
						l.deadline = min(l.ttl, r.Aging)
						l.held = l.deadline
						l.mark, l.aged = 1, true
					}
					l.inherited = true
					l.ageAt = l.deadline - min(l.deadline/2, l.ttl/8, 5*time.Second)
					records = append(records, r)
					m.leases[id] = l
				}
				c.Start(now, records)
			},
			"wait": func(t *rapid.T) { now += time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "d")) },
			"fire": func(t *rapid.T) {
				now += rapid.SampledFrom([]time.Duration{0, tick / 2, tick, 2 * tick, 2*tick + 1, time.Hour}).Draw(t, "d")
				late := now-m.fired > 2*tick
				m.time, m.fired = m.at(now), now
				if late {
					m.quiet = m.time + graceTicks*tick
				}
				c.Advance(now)
			},
			"late reading": func(*rapid.T) { c.Advance(m.fired / 2) },
			"grant": func(t *rapid.T) {
				id, ttl := ids.Draw(t, "id"), ttls.Draw(t, "ttl")
				l := &modelLease{id: id, ttl: time.Duration(ttl) * time.Second}
				m.renew(now, l)
				m.leases[id] = l
				c.Grant(now, id, ttl)
			},
			"renew": func(t *rapid.T) {
				id, l := lease(t)
				want := Renewal{Status: Unknown}
				switch {
				case l == nil:
				case l.ending:
					want.Status = Ending
				default:
					m.renew(now, l)
					want.Status = Live
					if l.aged {
						want = Renewal{Status: Aged, Mark: l.mark}
					}
				}
				if got := c.Renew(now, id); got != want {
					t.Fatalf("Renew(%d) = %+v, want %+v", id, got, want)
				}
			},
			"fresh": func(t *rapid.T) {
				id, l := lease(t)
				mark := rapid.Uint32Range(0, 3).Draw(t, "mark")
				if l != nil && l.mark == mark {
					l.aged = false
				}
				c.Fresh(id, mark)
			},
			"remove": func(t *rapid.T) {
				gone := rapid.SliceOfN(ids, 0, 3).Draw(t, "ids")
				for _, id := range gone {
					delete(m.leases, id)
				}
				c.Remove(gone...)
			},
			"withdraw": func(t *rapid.T) {
				id, l := lease(t)
				if l != nil {
					l.ending = false
				}
				c.Withdraw(id)
			},
			"due": func(t *rapid.T) {
				limit := limits.Draw(t, "limit")
				var want []int64
				for _, l := range m.due(limit) {
					if now-l.renewed < l.held {
						t.Fatalf("lease %d ends %v after it was promised %v", l.id, now-l.renewed, l.held)
					}
					l.ending = true
					want = append(want, l.id)
				}
				if diff := gocmp.Diff(want, c.Due(limit)); diff != "" {
					t.Fatalf("due (-want +got):\n%s", diff)
				}
				if len(want) < limit && c.MayBeDue() {
					t.Fatal("MayBeDue sees another lease")
				}
			},
			"aging": func(t *rapid.T) {
				limit := limits.Draw(t, "limit")
				var want []Aging
				for _, l := range m.aging(limit) {
					left := l.deadline - m.time
					l.ageAt = left / 2
					if l.inherited {
						l.ageAt = max(l.ageAt, left-m.time/2)
					}
					l.mark++
					l.aged = true
					want = append(want, Aging{ID: l.id, Remaining: left})
				}
				if diff := gocmp.Diff(want, c.AgingDue(limit)); diff != "" {
					t.Fatalf("aging (-want +got):\n%s", diff)
				}
			},
			"": func(t *rapid.T) { compareClock(t, now, c, m) },
		}
		for _, again := range []string{"fire", "due", "aging", "renew"} { // drawn more often
			actions[again+" again"] = actions[again]
		}
		t.Repeat(actions)
	})
}

func compareClock(t *rapid.T, now time.Duration, c *Clock, m *clockModel) {
	if c.Len() != len(m.leases) {
		t.Fatalf("Len = %d, want %d", c.Len(), len(m.leases))
	}
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		l := m.leases[id]
		left, ok := c.Remaining(now, id)
		if want := max(0, l.deadline-m.at(now)); !ok || left != want {
			t.Fatalf("Remaining(%d) = %v, %t, want %v", id, left, ok, want)
		}
		if c.Ending(id) != l.ending || c.needsFresh(id) != l.aged {
			t.Fatalf("lease %d: ending %t, aged %t, want %t, %t", id, c.Ending(id), c.needsFresh(id), l.ending, l.aged)
		}
	}
	if due := m.due(1); len(due) > 0 && !c.MayBeDue() {
		t.Fatalf("MayBeDue denies lease %d", due[0].id)
	}
	if aging := m.aging(1); len(aging) > 0 && !c.MayBeAging() {
		t.Fatalf("MayBeAging denies lease %d", aging[0].id)
	}
	checkQueue(t, &c.ends)
	checkQueue(t, &c.ages)
}

// checkQueue checks that the queue is a heap whose timers know their places.
func checkQueue(t *rapid.T, q *queue) {
	for i, tm := range q.timers {
		if int(tm.pos[q.kind]) != i {
			t.Fatalf("timer %d at %d believes to be at %d", tm.id, i, tm.pos[q.kind])
		}
		if i > 0 && (*timerHeap)(q).Less(i, (i-1)/2) {
			t.Fatalf("timer %d at %d orders before its parent", tm.id, i)
		}
	}
}
