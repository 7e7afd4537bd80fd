package shard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// Bounds of one command of the keeper.
const (
	maxExpirePerCommand = 1000
	maxAgingPerCommand  = 1000
)

// keeper drives the clock of a shard's leases while this node leads it: it
// proposes the ends of leases whose time has passed, logs the silent ones, and
// renews. Only monotonic time is read, and only here.
type keeper struct {
	d *Data
	// start is what monotonic readings count from.
	start time.Time

	mu sync.Mutex
	// clock is that of the term, nil while this node does not lead; protected by mu, with
	// the term.
	clock *lease.Clock
	term  uint64
	// granted is the incarnation of the newest grant that the clock knows of;
	// protected by mu.
	granted uint64
	// expiring and aging are true while a command of the kind is on its way, so
	// that there is one at a time; protected by mu.
	expiring, aging bool
	// settled is closed, and replaced, when an end on its way was settled or the
	// term ended; protected by mu.
	settled chan struct{}
}

var _ raft.Leadership = (*keeper)(nil)

func newKeeper(d *Data) *keeper {
	return &keeper{d: d, start: time.Now(), settled: make(chan struct{})}
}

func (k *keeper) now() time.Duration { return time.Since(k.start) }

// Began starts the clock of a term: full TTLs, or what an earlier leader logged. Ends
// under way go on.
func (k *keeper) Began(term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.term = term
	k.clock = lease.NewClock(raft.LeadershipTick)
	k.granted = k.d.leases.Granted()
	records := k.d.leases.All()
	k.clock.Start(k.now(), records)
	k.d.ender.began(records)
	k.d.settler.began()
	k.expiring, k.aging = false, false
}

// Ended forgets the clock and the ends under way.
func (k *keeper) Ended() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock = nil
	k.d.ender.ended()
	k.d.settler.ended()
	k.notifyLocked()
}

// notifyLocked wakes the renewals that wait for an end. k.mu must be held.
func (k *keeper) notifyLocked() {
	close(k.settled)
	k.settled = make(chan struct{})
}

// Tick advances the clock and sees to what is due.
func (k *keeper) Tick() {
	k.d.ender.tick()
	k.d.settler.tick()
	k.mu.Lock()
	c := k.clock
	if c == nil || c.Len() == 0 {
		k.mu.Unlock()
		return
	}
	c.Advance(k.now())
	expire, age := !k.expiring && c.MayBeDue(), !k.aging && c.MayBeAging()
	k.expiring = k.expiring || expire
	k.aging = k.aging || age
	k.mu.Unlock()
	if expire {
		k.expire(c)
	}
	if age {
		k.age(c)
	}
}

// expire queues a command that ends what is due. Which leases that are is
// decided when it leaves the queue: a renewal read before then takes its lease
// out.
func (k *keeper) expire(c *lease.Clock) {
	p := raft.Proposal{Kind: raft.Kind(kindLeaseExpire)}
	most := maxExpirePerCommand
	if k.d.Shape().Ordered {
		if others := k.d.others.Load(); others != nil && (*others).EndsTogether() {
			p.Kind = raft.Kind(kindLeaseEnd)
		}
		k.mu.Lock()
		most = c.CountDue(maxExpirePerCommand)
		k.mu.Unlock()
		p.Numbers, p.Writes = max(most, 1), raft.Writes{Unknown: true}
	}
	var ids []int64
	fill := func() ([]byte, bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.clock != c {
			return nil, false
		}
		ids = c.Due(most)
		var payload []byte
		for _, id := range ids {
			if rec, ok := k.meantLocked(id); ok {
				payload = appendLeaseRef(payload, leaseRef{id: id, incarnation: rec.Incarnation})
			}
		}
		return payload, len(payload) > 0
	}
	settled := func(result any, err error) {
		k.mu.Lock()
		if k.clock != c {
			k.mu.Unlock()
			return
		}
		for _, id := range ids {
			if rec, ok := k.d.leases.Get(id); c.Ending(id) && (!ok || !rec.Ending) {
				c.Withdraw(id)
			}
		}
		k.notifyLocked()
		// What ends together with many others does not wait for the next tick, unless none of
		// those that were due could end.
		ended, _ := result.([]int64)
		k.expiring = err == nil && len(ended) > 0 && c.MayBeDue()
		again := k.expiring
		k.mu.Unlock()
		if again {
			k.expire(c)
		}
	}
	if err := k.d.replica.SubmitLater(p, fill, settled); err != nil {
		settled(nil, err)
	}
}

// meantLocked returns the lease that the clock means by id, if it is still there.
// The table may be ahead of the clock: a lease may have been revoked and its id
// granted anew, which is not the lease whose time the clock counts. k.mu must be
// held.
func (k *keeper) meantLocked(id int64) (lease.Record, bool) {
	rec, ok := k.d.leases.Get(id)
	return rec, ok && rec.Incarnation <= k.granted
}

// age queues a command that logs what remains of silent leases.
func (k *keeper) age(c *lease.Clock) {
	fill := func() ([]byte, bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.clock != c {
			return nil, false
		}
		var payload []byte
		for _, a := range c.AgingDue(maxAgingPerCommand) {
			if rec, ok := k.meantLocked(a.ID); ok {
				payload = appendLeaseRef(payload, leaseRef{a.ID, rec.Incarnation, a.Remaining})
			}
		}
		return payload, len(payload) > 0
	}
	settled := func(any, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.clock == c {
			k.aging = false
		}
	}
	if err := k.d.replica.SubmitLater(raft.Proposal{Kind: raft.Kind(kindLeaseAging)}, fill, settled); err != nil {
		settled(nil, err)
	}
}

// applied tells the clock what a committed run granted and ended.
func (k *keeper) applied(r *dataRun) {
	if len(r.granted) == 0 && len(r.ended) == 0 && len(r.ending) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.clock == nil {
		return
	}
	now := k.now()
	for _, rec := range r.granted {
		k.granted = max(k.granted, rec.Incarnation)
		if cur, ok := k.d.leases.Get(rec.ID); ok && cur.Incarnation == rec.Incarnation {
			k.clock.Grant(now, rec.ID, rec.TTL)
		}
	}
	for _, id := range r.ending {
		k.clock.End(id)
	}
	for _, id := range r.ended {
		if _, ok := k.d.leases.Get(id); !ok {
			k.clock.Remove(id)
		}
	}
	if len(r.ending) > 0 {
		k.d.ender.add(r.ending)
	}
	if r.forgotten {
		k.notifyLocked()
	}
}

// renewal is what the clock says at the moment a renewal is read.
type renewal struct {
	lease.Renewal
	// clock is the one that was renewed, and term the one that it is of.
	clock *lease.Clock
	term  uint64
	// settled is closed when an end on its way is settled.
	settled chan struct{}
}

func (k *keeper) renew(id int64) (renewal, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.clock == nil {
		return renewal{}, false
	}
	return renewal{k.clock.Renew(k.now(), id), k.clock, k.term, k.settled}, true
}

// runs reports whether a clock is the one by which leases end. Where it still is after a
// proof of leadership, the proof was of the clock's term: each term has a clock of its own,
// which is there before the term is served.
func (k *keeper) runs(c *lease.Clock) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clock == c
}

// Renew gives a lease its full TTL from the moment of the call, proves that this
// node leads in the term whose clock was renewed, and returns the TTL in seconds, 0 if
// there is no such lease. While the lease's end is on its way it waits for the outcome.
func (d *Data) Renew(ctx context.Context, id int64) (int64, error) {
	for {
		n, ok := d.keeper.renew(id)
		if !ok {
			return 0, raft.ErrNotLeader
		}
		d.replica.Stall("renewed")
		switch n.Status {
		case lease.Ending:
			select {
			case <-n.settled:
				continue
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		case lease.Aged:
			if err := d.freshen(ctx, id, n); err != nil {
				return 0, err
			}
		case lease.Live, lease.Unknown:
			if err := d.replica.Confirm(ctx); err != nil {
				return 0, err
			}
		}
		if !d.keeper.runs(n.clock) {
			continue // the leases end by another clock, which has not heard of the call
		}
		rec, ok := d.leases.Get(id)
		if ok && rec.Ending {
			if err := d.awaitForgotten(ctx, id); err != nil {
				return 0, err
			}
			continue
		}
		if !ok {
			return 0, nil
		}
		if n.Status == lease.Unknown {
			continue // granted between the clock's answer and the proof
		}
		d.observer.LeaseRenewed()
		return rec.TTL, nil
	}
}

// freshen logs that an aged lease was renewed. The entry applies in the term of the clock
// that was renewed or not at all, which proves what Confirm would.
func (d *Data) freshen(ctx context.Context, id int64, n renewal) error {
	rec, ok := d.leases.Get(id)
	if !ok {
		return d.replica.Confirm(ctx)
	}
	payload := appendLeaseRef(nil, leaseRef{id: id, incarnation: rec.Incarnation})
	_, err := d.replica.Submit(ctx, raft.Proposal{Kind: raft.Kind(kindLeaseFresh), Payload: payload, Term: n.term})
	switch {
	case err == nil:
		k := d.keeper
		k.mu.Lock()
		if k.clock == n.clock {
			k.clock.Fresh(id, n.Mark)
		}
		k.mu.Unlock()
		return nil
	case errors.Is(err, lease.ErrNotFound):
		return nil
	default:
		return err
	}
}

// AwaitEnded waits until lease id is not ending any more: all its keys are gone. It sees
// every end that had been decided before the call, be it that the caller's replica has
// applied the decision and this one has not yet. Errors are those of Confirm and the
// context's.
func (d *Data) AwaitEnded(ctx context.Context, id int64) error {
	if err := d.replica.Confirm(ctx); err != nil {
		return err
	}
	return d.awaitForgotten(ctx, id)
}

// awaitForgotten is AwaitEnded for a caller who has proved that the decision has applied
// here. That a lease is forgotten needs no proof: it is in the log, behind all that was
// to be done before.
func (d *Data) awaitForgotten(ctx context.Context, id int64) error {
	k := d.keeper
	for {
		k.mu.Lock()
		leads, settled := k.clock != nil, k.settled
		k.mu.Unlock()
		if rec, ok := d.leases.Get(id); !ok || !rec.Ending {
			return nil
		}
		if !leads {
			return raft.ErrNotLeader
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Leases returns the records of all leases by id. Behind a Confirm it is
// linearizable.
func (d *Data) Leases() []lease.Record { return d.leases.All() }

// LeaseSize returns what the leases count for, in bytes, beside their keys.
func (d *Data) LeaseSize() int64 { return d.leases.Size() }

// LeaseLife is what TimeToLive tells of a lease.
type LeaseLife struct {
	lease.Record
	// Remaining is how long it still has.
	Remaining time.Duration
	// Keys are the keys attached, in order; nil unless asked for.
	Keys [][]byte
	// Holders are the shards that may have keys of the lease, other than its home.
	Holders []uint64
}

// TimeToLive returns a lease's life, or false if there is none. ErrNotLeader
// says that this node does not keep the clock.
func (d *Data) TimeToLive(ctx context.Context, id int64, keys bool) (LeaseLife, bool, error) {
	if err := d.replica.Confirm(ctx); err != nil {
		return LeaseLife{}, false, err
	}
	k := d.keeper
	k.mu.Lock()
	if k.clock == nil {
		k.mu.Unlock()
		return LeaseLife{}, false, raft.ErrNotLeader
	}
	remaining, ticking := k.clock.Remaining(k.now(), id)
	k.mu.Unlock()
	rec, ok := d.leases.Get(id)
	if ok && rec.Ending {
		return LeaseLife{}, false, lease.ErrEnding
	}
	if !ok || !ticking {
		return LeaseLife{}, false, nil
	}
	life := LeaseLife{Record: rec, Remaining: remaining, Holders: d.leases.Registered(id)}
	if keys {
		life.Keys = d.leases.Keys(id)
	}
	return life, true, nil
}
