package lease

import (
	"math"
	"time"
)

const (
	// maxTicks is how far one firing moves the clock at most.
	maxTicks = 2
	// graceTicks is for how long nothing ends after a late firing.
	graceTicks = 3
	// minAgingTicks bounds how small a remainder is worth logging.
	minAgingTicks = 5
	// inheritedPart and inheritedSilence say how soon a lease that was there before the
	// term is logged as aging: after this part of its TTL, or this time, if it has been
	// silent since the term began; then each time its silence has grown by half. So two
	// thirds of a term count at the least, and leaders that change faster than half a TTL
	// don't keep a dead lease for ever.
	inheritedPart    = 8
	inheritedSilence = 5 * time.Second
)

// Status is what a renewal found.
type Status uint8

const (
	// Unknown says that there is no such lease.
	Unknown Status = iota + 1
	// Live says that the lease was renewed.
	Live
	// Aged says that the lease was renewed, but that a remainder may be in the
	// log: "fresh" must be applied behind it before the renewal is answered.
	Aged
	// Ending says that the end of the lease is under way. Nothing was renewed; the
	// outcome decides.
	Ending
)

// String returns the standing as a word.
func (s Status) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case Live:
		return "live"
	case Aged:
		return "aged"
	case Ending:
		return "ending"
	}
	return "invalid"
}

// Renewal is the answer to Renew.
type Renewal struct {
	Status Status
	// Mark names the remainder that an Aged lease has in the log, for Fresh.
	Mark uint32
}

// Aging is what remains of a lease that has been silent.
type Aging struct {
	ID        int64
	Remaining time.Duration
}

// Clock keeps the deadlines of the leases whose shard this node leads. It is
// made anew for each term. It is not safe for concurrent use: the leader's
// mutex guards it.
//
// Every now is the caller's monotonic reading. Readings may come a little out of
// order, as they do when they are taken before the mutex; a late one counts as
// the newest seen by Advance, never as time gone backwards.
type Clock struct {
	tick time.Duration

	// fired is the reading of the last firing.
	fired time.Duration
	// time is the clock's own time at the last firing, 0 at Start.
	//
	// Invariant: it grows by no more than fired does.
	time time.Duration
	// quiet is the moment of the clock's own time before which nothing ends.
	quiet time.Duration

	timers map[int64]*timer
	ends   queue
	ages   queue
}

const (
	slotEnd = iota
	slotAge
	slotCount
)

// timer is a lease on the clock. All moments are in the clock's own time.
type timer struct {
	id  int64
	ttl time.Duration
	// deadline is the moment after which the lease may end.
	deadline time.Duration
	// ageAt is the remainder at which the lease is next logged as aging.
	//
	// Invariant: 0 <= ageAt <= ttl.
	ageAt time.Duration
	// at is the moment that the timer is filed under in each queue, and pos its index there,
	// or absent.
	at  [slotCount]time.Duration
	pos [slotCount]int32
	// mark counts the remainders handed out for the log; aged says that the last
	// one may still stand there.
	mark   uint32
	aged   bool
	ending bool
	// inherited says that the lease has been silent since the term began.
	inherited bool
}

// NewClock returns a clock without leases that expects to be advanced about
// every tick, a positive duration.
func NewClock(tick time.Duration) *Clock {
	return &Clock{
		tick:   tick,
		timers: make(map[int64]*timer),
		ends:   queue{kind: slotEnd},
		ages:   queue{kind: slotAge},
	}
}

// Start begins a term: it forgets every lease and sets the clock for those of
// records. Each has its full TTL from now, or its logged remainder if it is
// aging. A lease that is ending has no deadline and is never due.
func (c *Clock) Start(now time.Duration, records []Record) {
	*c = *NewClock(c.tick)
	c.fired = now
	c.timers = make(map[int64]*timer, len(records))
	for _, r := range records {
		t := newTimer(r.ID, r.TTL)
		c.timers[r.ID] = t
		if r.Ending {
			t.ending = true
			continue
		}
		t.deadline = t.ttl
		if r.Aging > 0 {
			t.deadline = min(t.ttl, r.Aging)
			t.mark, t.aged = 1, true
		}
		t.inherited = true
		t.ageAt = t.deadline - min(t.deadline/2, t.ttl/inheritedPart, inheritedSilence)
		c.schedule(t)
	}
}

// Advance is a firing: it moves the clock up to now, by two ticks at most. A
// firing that comes later than that opens a grace of a few ticks.
func (c *Clock) Advance(now time.Duration) {
	if now <= c.fired {
		return
	}
	late := now-c.fired > c.step()
	c.time, c.fired = c.at(now), now
	if late {
		c.quiet = c.time + graceTicks*c.tick
	}
}

// Grant sets the clock for a new lease with a TTL of ttl seconds.
func (c *Clock) Grant(now time.Duration, id, ttl int64) {
	c.Remove(id)
	t := newTimer(id, ttl)
	c.timers[id] = t
	c.renew(now, t)
}

// Renew gives lease id its full TTL from now, unless its end is under way. The
// answer to a client must wait for what the Renewal says.
func (c *Clock) Renew(now time.Duration, id int64) Renewal {
	t, ok := c.timers[id]
	switch {
	case !ok:
		return Renewal{Status: Unknown}
	case t.ending:
		return Renewal{Status: Ending}
	}
	c.renew(now, t)
	if t.aged {
		return Renewal{Status: Aged, Mark: t.mark}
	}
	return Renewal{Status: Live}
}

// Fresh says that "fresh" was applied for lease id. mark is what Renew returned
// before it was proposed: a remainder that was handed out since then stands
// behind it, and the lease stays aged.
func (c *Clock) Fresh(id int64, mark uint32) {
	if t, ok := c.timers[id]; ok && t.mark == mark {
		t.aged = false
	}
}

// Remove takes leases off the clock: they are gone. Unknown ids are ignored.
func (c *Clock) Remove(ids ...int64) {
	for _, id := range ids {
		t, ok := c.timers[id]
		if !ok {
			continue
		}
		c.ends.remove(t)
		c.ages.remove(t)
		delete(c.timers, id)
	}
}

// Due returns up to limit leases whose time has passed, longest overdue first,
// and marks their end as under way. The caller proposes it and then calls either
// Remove or Withdraw. During a grace nothing is due.
func (c *Clock) Due(limit int) []int64 {
	if c.time < c.quiet {
		return nil
	}
	var due []int64
	for len(due) < limit {
		t := c.ends.front(c.time)
		if t == nil {
			break
		}
		if t.deadline > t.at[slotEnd] {
			c.ends.refile(t, t.deadline)
			continue
		}
		t.ending = true
		c.ends.remove(t)
		c.ages.remove(t)
		due = append(due, t.id)
	}
	return due
}

// CountDue returns how many leases Due would return now, limit at the most, or more.
func (c *Clock) CountDue(limit int) int {
	if c.time < c.quiet {
		return 0
	}
	return c.ends.countUpTo(c.time, limit)
}

// MayBeDue reports whether Due may return something now. False is certain.
func (c *Clock) MayBeDue() bool { return c.time >= c.quiet && c.ends.front(c.time) != nil }

// MayBeAging reports whether AgingDue may return something now. False is
// certain.
func (c *Clock) MayBeAging() bool { return c.time >= c.quiet && c.ages.front(c.time) != nil }

// Withdraw says that the end of lease id never applies. The lease is live again
// and at once due, unless it is renewed first.
func (c *Clock) Withdraw(id int64) {
	t, ok := c.timers[id]
	if !ok || !t.ending {
		return
	}
	t.ending = false
	c.schedule(t)
}

// End says that the end of lease id is decided: it is never due any more.
func (c *Clock) End(id int64) {
	t, ok := c.timers[id]
	if !ok {
		return
	}
	t.ending = true
	c.ends.remove(t)
	c.ages.remove(t)
}

// Ending reports whether the end of lease id is under way.
func (c *Clock) Ending(id int64) bool {
	t, ok := c.timers[id]
	return ok && t.ending
}

// AgingDue returns up to limit leases that should be logged as aging: silent for
// half their TTL, and again each time what remains has halved, down to five ticks;
// those that have been silent since the term began earlier, as inheritedPart says. From here on they count as aged, for the caller proposes the remainders.
// During a grace there are none.
func (c *Clock) AgingDue(limit int) []Aging {
	if c.time < c.quiet {
		return nil
	}
	var aging []Aging
	for len(aging) < limit {
		t := c.ages.front(c.time)
		if t == nil {
			break
		}
		if at := t.deadline - t.ageAt; at > t.at[slotAge] {
			c.ages.refile(t, at)
			continue
		}
		remaining := t.deadline - c.time
		if remaining < minAgingTicks*c.tick {
			c.ages.remove(t)
			continue
		}
		t.ageAt = remaining / 2
		if t.inherited {
			t.ageAt = max(t.ageAt, remaining-c.time/2)
		}
		t.mark++
		t.aged = true
		c.ages.refile(t, t.deadline-t.ageAt)
		aging = append(aging, Aging{ID: t.id, Remaining: remaining})
	}
	return aging
}

// Remaining returns how long lease id still has, at least 0, and whether it is
// there.
func (c *Clock) Remaining(now time.Duration, id int64) (time.Duration, bool) {
	t, ok := c.timers[id]
	if !ok {
		return 0, false
	}
	return max(0, t.deadline-c.at(now)), true
}

// Len returns the number of leases on the clock. While it is 0 nothing can
// become due and the clock need not be advanced.
func (c *Clock) Len() int { return len(c.timers) }

// at returns the clock's own time at the reading now.
func (c *Clock) at(now time.Duration) time.Duration {
	return c.time + max(0, min(now-c.fired, c.step()))
}

func (c *Clock) step() time.Duration { return maxTicks * c.tick }

func (c *Clock) renew(now time.Duration, t *timer) {
	t.deadline = addTime(c.at(now), t.ttl)
	t.ageAt = t.ttl / 2
	t.inherited = false
	c.schedule(t)
}

func (c *Clock) schedule(t *timer) {
	c.ends.schedule(t, t.deadline)
	c.ages.schedule(t, t.deadline-t.ageAt)
}

func newTimer(id, ttl int64) *timer {
	return &timer{id: id, ttl: seconds(ttl), pos: [slotCount]int32{absent, absent}}
}

// seconds returns n seconds, 0 for a negative n, the longest duration for one
// that is too large.
func seconds(n int64) time.Duration {
	switch {
	case n <= 0:
		return 0
	case n > math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// addTime returns the sum of two durations that are not negative, or the longest
// duration.
func addTime(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
