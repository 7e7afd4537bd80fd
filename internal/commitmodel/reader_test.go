package commitmodel

import "math/bits"

// viewable reports whether a reader can have its first view of a shard: H is promised
// there, since nothing with a number up to H is under way.
func (m *model) viewable(s *state, r, p int) bool {
	rd := &s.reads[r]
	if rd.h == 0 || rd.viewed.has(p) || !m.reads[r].shards().has(p) {
		return false
	}
	for _, n := range s.shards[p].ready {
		if n.item != noItem && n.number <= rd.h-1 {
			return false
		}
	}
	return true
}

// view gives a reader its first view of a shard.
func (t *step) view(r, p int) {
	rd, sh := &t.s.reads[r], &t.s.shards[p]
	rd.viewed |= 1 << p
	sh.promised = max(sh.promised, rd.h-1)
	if t.has(viewAfterPromise) {
		t.note(r, p)
	}
	t.publish(p)
}

// note has a reader wait for what holds some of its keys on a shard.
func (t *step) note(r, p int) {
	for i, b := range t.s.shards[p].holds {
		if b == 0 || !t.has(viewsCarryHolds) {
			continue
		}
		if _, w := t.of(i); w.writes&t.reads[r].on(p) != 0 {
			t.s.reads[r].waits[p] |= 1 << i
		}
	}
}

// start gives a reader its H.
func (t *step) start(r int) {
	rd := &t.s.reads[r]
	if t.has(viewAfterPromise) || rd.early {
		rd.h = 1 + t.s.counter
		return
	}
	rd.early = true
	for p := range maxShards {
		t.note(r, p)
	}
}

// readable reports whether the holds of a reader's first view of a shard have gone.
func (m *model) readable(s *state, r, p int) bool {
	rd := &s.reads[r]
	if !rd.viewed.has(p) || rd.done.has(p) {
		return false
	}
	for i, b := range s.shards[p].holds {
		if b != 0 && rd.waits[p]>>i&1 != 0 {
			return false
		}
	}
	return true
}

// read lets a reader read a shard: several at H, one at the newest state that is sure to be
// complete.
func (t *step) read(r, p int) {
	rd, sh := &t.s.reads[r], &t.s.shards[p]
	rd.done |= 1 << p
	rd.waits[p] = 0
	k := t.reads[r]
	rev := rd.h - 1
	if bits.OnesCount8(uint8(k.shards())) == 1 {
		bound := t.lowest(p, k)
		switch {
		case bound == 0 || !t.has(readBelowHolds):
			rev = max(rev, sh.rev)
		case t.has(neverBelowH):
			rev = max(rev, bound-1)
		default:
			rev = bound - 1
		}
	}
	if rev < rd.h-1 {
		t.fail(isolation, "read %d is at %d, and began when %d had been given out", r+1, rev, rd.h-1)
	}
	k.on(p).each(func(key int) { t.show(key, rev) })
}

// raise has a shard's fence keep out what was checked before the right was taken away. When
// all have, that is acknowledged.
func (t *step) raise(p int) {
	t.s.shards[p].fenced = true
	for q := range t.shards() {
		if !t.s.shards[q].fenced {
			return
		}
	}
	t.s.acked = 1 + t.s.counter
}

// endable reports whether the lease's clock has its end proposed: what holds its key is
// waited for, once it has been met.
func (m *model) endable(s *state) bool {
	l := &s.lease
	if l.ending || l.phase == leaseEnded || l.phase == leaseAlive && (!l.skipped || m.has(skippedNotEnded)) {
		return false
	}
	return !l.skipped || !m.keyHeld(s)
}

// keyHeld reports whether somebody holds the key that hangs on the lease.
func (m *model) keyHeld(s *state) bool {
	for i, b := range s.shards[0].holds {
		if b != 0 && m.meet(leaseEnd, firstID+item(i), 0) {
			return true
		}
	}
	return false
}

// end gives the end of the lease a number.
func (t *step) end() {
	t.s.counter++
	t.s.shards[0].push(leaseEnd, t.s.counter)
	t.s.lease.ending = true
}

// applyEnd has the shard apply the end of the lease, which deletes its key.
func (t *step) applyEnd(n uint8) {
	l, sh := &t.s.lease, &t.s.shards[0]
	l.ending = false
	if n <= sh.rev {
		return
	}
	if t.keyHeld(t.s) {
		l.skipped = true
		return
	}
	if l.phase == leaseAlive {
		t.fail(leases, "the lease ends at %d although it has been renewed", n)
	}
	t.insert(0, n)
	sh.rev = n
	l.phase = leaseEnded
	t.publish(0)
}
