package commitmodel

import "fmt"

// step is one action being carried out on a state.
type step struct {
	*model
	s *state
	// bad is the first promise that the step broke, "" for none. It begins with the
	// promise's name.
	bad string
}

func (t *step) fail(promise, format string, args ...any) {
	if t.bad == "" {
		t.bad = promise + ": " + fmt.Sprintf(format, args...)
	}
}

// The promises that a step can break.
const (
	atomicity = "atomicity" // some of a transaction's writes without the others
	isolation = "isolation" // what was seen at a revision is not what was there
	answers   = "answers"   // a client was told what is not so
	rights    = "rights"    // a write beyond a right that was known to be gone
	leases    = "leases"    // a lease that ended although it had been renewed
	liveness  = "liveness"  // somebody waits for ever
)

// insert puts a version of a key.
func (t *step) insert(key int, n uint8) {
	if n <= t.s.shown[key] {
		t.fail(isolation, "key %c gets a version at %d, though its state at %d was seen", "abcxyz"[key], n, t.s.shown[key])
	}
	t.s.newest[key] = max(t.s.newest[key], n)
	t.show(key, n)
}

// show notes that somebody may have seen the state of a key at a revision.
func (t *step) show(key int, rev uint8) {
	t.s.shown[key] = max(t.s.shown[key], rev)
}

// resolved returns the revision up to which a shard's replicas take a key's history for
// complete.
func (t *step) resolved(p, key int) uint8 {
	sh := &t.s.shards[p]
	if bound := t.lowest(p, 1<<key); bound != 0 && t.has(resolvedOfSpan) {
		return bound - 1
	}
	return max(sh.rev, sh.promised)
}

// lowest returns 1 + the lowest bound of the exclusive holds that meet the keys on a
// shard, 0 if there are none.
func (t *step) lowest(p int, k keySet) (bound uint8) {
	for i, b := range t.s.shards[p].holds {
		if b == 0 {
			continue
		}
		if _, w := t.of(i); w.writes&k != 0 && (bound == 0 || b < bound) {
			bound = b
		}
	}
	return bound
}

// publish lets the watchers of each key of a shard see what it has come to.
func (t *step) publish(p int) {
	for key := p; key < maxKeys; key += maxShards {
		t.show(key, t.resolved(p, key))
	}
}

// prepare has a shard apply the Prepare of an id that its leader was sent, or that leaves the
// line, or has it wait.
func (t *step) prepare(i, p int) {
	sh, me := &t.s.shards[p], &t.s.ids[i]
	_, w := t.of(i)
	t.mark(p, w.node, me.low)
	switch {
	case sh.tombs[i] != noTomb, sh.fenced, t.has(refuseBelowMarks) && me.seq < sh.marks[w.node]:
		sh.leave(firstID + item(i))
		me.refused = me.refused || !me.ok.has(p)
	case sh.holds[i] != 0:
		me.ok |= 1 << p
	default:
		t.admit(i, p)
	}
}

// mark takes over the lowest open id of a node, and drops the tombstones below it.
func (t *step) mark(p, node int, low uint8) {
	sh := &t.s.shards[p]
	if low <= sh.marks[node] {
		return
	}
	sh.marks[node] = low
	for i := range sh.tombs {
		if sh.tombs[i] == noTomb {
			continue
		}
		if _, w := t.of(i); w.node == node && t.s.ids[i].seq < low {
			sh.tombs[i] = noTomb
		}
	}
}

// admit has a Prepare hold, wait or fail.
func (t *step) admit(i, p int) {
	sh, me := &t.s.shards[p], &t.s.ids[i]
	it := firstID + item(i)
	switch t.turn(t.s, it, p) {
	case goes:
		sh.leave(it)
		sh.holds[i] = 1 + sh.rev
		me.ok |= 1 << p
		_, w := t.of(i)
		w.keys().on(p).each(func(key int) {
			if me.look[key] == 0 {
				me.look[key] = 1 + t.s.newest[key]
			}
		})
		t.publish(p)
	case waits:
		if !sh.waits(it) {
			sh.queue(it)
		}
	case fails:
		sh.leave(it)
		me.refused = me.refused || !me.ok.has(p)
	}
}

// bury leaves a tombstone of an id, unless a mark stands for it.
func (t *step) bury(i, p int, as tomb) {
	sh := &t.s.shards[p]
	_, w := t.of(i)
	if sh.tombs[i] == noTomb && (!t.has(refuseBelowMarks) || t.s.ids[i].seq >= sh.marks[w.node]) {
		sh.tombs[i] = as
	}
}

// release has a shard apply Release.
func (t *step) release(i, p int) {
	sh, me := &t.s.shards[p], &t.s.ids[i]
	_, w := t.of(i)
	if sh.holds[i] != 0 && me.committed != 0 && p != w.home() && !me.finished.has(p) {
		t.fail(atomicity, "shard %d releases %s, which has committed at %d", p, t.name(i), me.committed)
	}
	t.drop(i, p)
}

// drop ends an id on a shard where it has not committed.
func (t *step) drop(i, p int) {
	sh := &t.s.shards[p]
	sh.leave(firstID + item(i))
	sh.holds[i] = 0
	if t.has(abortLeavesTomb) {
		t.bury(i, p, tombAborted)
	}
	t.publish(p)
}

// decide has the home apply Decide under its number.
func (t *step) decide(i int, n uint8) {
	_, w := t.of(i)
	home := w.home()
	sh, me := &t.s.shards[home], &t.s.ids[i]
	if n <= sh.rev {
		me.decide = true // turned away: its leader asks for another number
		return
	}
	sh.rev = n
	switch {
	case me.n != 0, sh.tombs[i] == tombCommitted:
		me.result = resultCommitted
	case t.unprepared(i) && t.has(refusedAtDecide) && (sh.tombs[i] != noTomb || me.seq < sh.marks[w.node]):
		me.result = resultAborted
	case t.unprepared(i) && t.has(meetsAtDecide) && t.meetsHold(firstID+item(i), home):
		me.result = resultAborted
	case !t.unprepared(i) && sh.holds[i] == 0 && (t.has(commitNeedsHold) || me.committed != 0):
		me.result = resultAborted
	case sh.fenced && t.has(epochAtDecide):
		t.drop(i, home)
		me.result = resultAborted
	default:
		t.commit(i, n)
		me.result = resultCommitted
	}
	t.publish(home)
}

// meetsHold reports whether an item meets what another holds on a shard.
func (t *step) meetsHold(it item, p int) bool {
	for i, b := range t.s.shards[p].holds {
		if b != 0 && t.meet(it, firstID+item(i), p) {
			return true
		}
	}
	return false
}

// commit checks that the transaction may commit at n, and writes what the home has of it.
func (t *step) commit(i int, n uint8) {
	x, w := t.of(i)
	me := &t.s.ids[i]
	for j := t.first(x); j < t.first(x)+t.tries; j++ {
		if t.s.ids[j].committed != 0 {
			t.fail(atomicity, "%s commits at %d, and %s has at %d", t.name(i), n, t.name(j), t.s.ids[j].committed)
		}
	}
	if t.s.wide[x].answer == answeredAborted {
		t.fail(answers, "%s commits at %d, and its client was told that it did not", t.name(i), n)
	}
	if t.s.acked != 0 && n >= t.s.acked {
		t.fail(rights, "%s commits at %d, and its right was gone at %d", t.name(i), n, t.s.acked-1)
	}
	for p := range maxShards {
		switch b := t.s.shards[p].holds[i]; {
		case !t.prepares(i).has(p):
		case b == 0:
			t.fail(atomicity, "%s commits at %d, and shard %d does not hold for it", t.name(i), n, p)
		case b > n:
			t.fail(isolation, "%s commits at %d, and shard %d held for it from %d", t.name(i), n, p, b-1)
		}
	}
	seen := w.keys()
	if t.unprepared(i) {
		seen &^= seen.on(w.home())
	}
	seen.each(func(key int) {
		if saw, newest := me.look[key]-1, t.s.newest[key]; saw != newest || newest >= n {
			t.fail(isolation, "%s commits at %d having seen version %d of key %c, whose newest is %d", t.name(i), n, saw, "abcxyz"[key], newest)
		}
	})
	(seen &^ t.written(i)).each(func(key int) { t.show(key, n) })
	me.n, me.committed = n, n
	t.apply(i, w.home())
}

// written returns the keys that the branch writes which an id's looks have chosen.
func (t *step) written(i int) keySet {
	_, w := t.of(i)
	k := w.writes
	w.unwritten.each(func(key int) {
		if t.s.ids[i].look[key] > 1 {
			k = 0
		}
	})
	return k
}

// apply carries out a shard's operations of a transaction that has committed, and ends its
// hold.
func (t *step) apply(i, p int) {
	sh, n := &t.s.shards[p], t.s.ids[i].committed
	t.written(i).on(p).each(func(key int) { t.insert(key, n) })
	sh.rev = max(sh.rev, n)
	sh.holds[i] = 0
	_, w := t.of(i)
	kept := finishLeavesTomb
	if p == w.home() {
		kept = outcomeStays
	}
	if t.has(kept) {
		t.bury(i, p, tombCommitted)
	}
	t.publish(p)
}

// finish has a participant apply Finish.
func (t *step) finish(i, p int) {
	me := &t.s.ids[i]
	switch {
	case t.s.shards[p].holds[i] != 0:
		t.apply(i, p)
	case !me.finished.has(p):
		t.fail(atomicity, "shard %d does not hold for %s, which has committed at %d", p, t.name(i), me.committed)
	}
	me.finished |= 1 << p
}

// forget has the home forget the operations of a transaction that every participant has
// applied. Its tombstone tells what came of it.
func (t *step) forget(i int) { t.s.ids[i].n = 0 }

// question has the home apply a participant's question, which aborts what has not
// committed. What stands is finished by the home's leader, with no answer.
func (t *step) question(i, p int) {
	_, w := t.of(i)
	me := &t.s.ids[i]
	if me.n != 0 || t.s.shards[w.home()].tombs[i] == tombCommitted {
		return
	}
	if t.has(questionInLog) {
		t.drop(i, w.home())
	}
	me.release |= 1 << p
}

// change gives a shard another leader: what the old one had in memory is gone. What of it
// was in the log has applied before.
func (t *step) change(p int) {
	sh := &t.s.shards[p]
	for _, r := range sh.ready {
		if w, ok := r.item.write(); ok {
			t.s.narrow[w].phase = writeIdle
		}
		if r.item == leaseEnd {
			t.s.lease.ending = false
		}
	}
	for _, it := range sh.line {
		if w, ok := it.write(); ok {
			t.s.narrow[w].phase = writeIdle
		}
		if i, ok := it.id(); ok {
			t.s.ids[i].refused = t.s.ids[i].refused || !t.s.ids[i].ok.has(p)
		}
	}
	sh.ready, sh.line = [maxReady]numbered{}, [maxLine]item{}
	if !t.has(tombsUntilMarks) {
		sh.tombs = [maxIDs]tomb{}
	}
}
