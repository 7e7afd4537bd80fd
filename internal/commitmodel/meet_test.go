package commitmodel

// turn is whether a command may go on that meets others at a shard's leader.
type turn int

const (
	goes turn = iota
	waits
	fails
)

// turn judges a command that arrives at a shard's leader or stands in its line.
func (m *model) turn(s *state, it item, p int) turn {
	sh := &s.shards[p]
	_, prepares := it.id()
	held := false
	for i, b := range sh.holds {
		holder := firstID + item(i)
		if b == 0 || holder == it || !m.meet(it, holder, p) {
			continue
		}
		if prepares && m.has(youngerGivesBack) && m.age(s, holder) < m.age(s, it) {
			return fails
		}
		held = true
	}
	if held {
		return waits
	}
	for _, other := range sh.line {
		if other == it && m.has(agesInLine) {
			continue
		}
		if other == it || other == noItem {
			break
		}
		if m.meet(it, other, p) && (!m.has(agesInLine) || m.age(s, other) < m.age(s, it)) {
			return waits
		}
	}
	return goes
}

// wounded reports whether something older waits for what a transaction holds.
func (m *model) wounded(s *state, x int) bool {
	if s.wide[x].phase != preparing || !m.has(olderWounds) {
		return false
	}
	mine := firstID + item(m.current(s, x))
	for p := range maxShards {
		sh := &s.shards[p]
		if sh.holds[mine-firstID] == 0 {
			continue
		}
		for _, it := range sh.line {
			if it == noItem {
				break
			}
			_, prepares := it.id()
			if (prepares || m.has(writesWound)) && m.age(s, it) < s.wide[x].age && m.meet(it, mine, p) {
				return true
			}
		}
	}
	return false
}

// write has a leader give a command of one shard a number, or a place in its line.
func (t *step) write(w int) {
	it := firstWrite + item(w)
	p, wr := t.shardOf(w), &t.s.narrow[w]
	sh := &t.s.shards[p]
	if t.turn(t.s, it, p) == waits {
		sh.queue(it)
		wr.phase = writeWaits
		return
	}
	sh.leave(it)
	t.s.counter++
	sh.push(it, t.s.counter)
	wr.phase = writeReady
}

// applyWrite has a shard apply a command that is its alone.
func (t *step) applyWrite(w int, n uint8) {
	it := firstWrite + item(w)
	p, wr := t.shardOf(w), &t.s.narrow[w]
	sh := &t.s.shards[p]
	if n <= sh.rev {
		wr.phase = writeIdle // turned away: it takes another number
		return
	}
	for i, b := range sh.holds {
		if b != 0 && t.has(holdsAtApply) && t.meet(it, firstID+item(i), p) {
			sh.queue(it)
			wr.phase = writeWaits
			return
		}
	}
	t.narrow[w].writes.each(func(key int) { t.insert(key, n) })
	t.narrow[w].reads.each(func(key int) { t.show(key, n) })
	sh.rev = n
	wr.phase = writeDone
	t.publish(p)
}

// shardOf returns where a command of one shard goes.
func (m *model) shardOf(w int) int {
	for p := range maxShards {
		if m.narrow[w].keys().shards().has(p) {
			return p
		}
	}
	panic("a command without keys")
}
