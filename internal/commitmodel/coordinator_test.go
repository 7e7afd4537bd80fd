package commitmodel

// begin has a coordinator draw an id for a transaction and send its Prepares.
func (t *step) begin(x int) {
	p, w := &t.s.wide[x], &t.wide[x]
	p.tries++
	p.phase = preparing
	me := &t.s.ids[t.current(t.s, x)]
	if me.seq == 0 {
		t.s.nodes[w.node]++
		me.seq = t.s.nodes[w.node]
	}
	me.low = me.seq
	if t.has(marksOfOpen) {
		me.low = t.lowestOpen(w.node)
	}
	me.prepare = t.prepares(t.current(t.s, x))
	me.ok, me.refused = 0, false
}

// lowestOpen returns the lowest id of a node that it works on.
func (t *step) lowestOpen(node int) uint8 {
	low := ^uint8(0)
	for x := range t.wide {
		if i := t.current(t.s, x); t.wide[x].node == node && t.s.wide[x].tries > 0 && t.open(t.s, i) {
			low = min(low, t.s.ids[i].seq)
		}
	}
	return low
}

// stranded reports whether a coordinator can know that a Prepare will not hold.
func (m *model) stranded(s *state, x int) bool {
	if s.wide[x].phase != preparing {
		return false
	}
	i := m.current(s, x)
	me := &s.ids[i]
	if me.refused {
		return true
	}
	missing := m.prepares(i) &^ (me.ok | me.prepare)
	for p := range maxShards {
		if missing.has(p) && !s.shards[p].waits(firstID+item(i)) {
			return true
		}
	}
	return false
}

// giveBack has a coordinator release what an id holds, and begin again or give up.
func (t *step) giveBack(x int) {
	p := &t.s.wide[x]
	t.s.ids[t.current(t.s, x)].release |= t.wide[x].keys().shards()
	if int(p.tries) < t.tries {
		p.phase = idle
		return
	}
	t.tell(x, answeredAborted)
}

// tell answers a transaction's client.
func (t *step) tell(x int, a answer) {
	t.s.wide[x].phase, t.s.wide[x].answer = done, a
	var committed uint8
	for i := t.first(x); i < t.first(x)+t.tries; i++ {
		committed = max(committed, t.s.ids[i].committed)
	}
	if a == answeredAborted && committed != 0 {
		t.fail(answers, "the client of T%d is told that it did nothing, and it has committed at %d", x+1, committed)
	}
	if a == answeredCommitted && committed == 0 {
		t.fail(answers, "the client of T%d is told that it committed, and it has not", x+1)
	}
}

// decidable reports whether a coordinator may send Decide, for the first time or because
// the last one certainly did nothing.
func (m *model) decidable(s *state, x int) bool {
	i := m.current(s, x)
	me := &s.ids[i]
	switch s.wide[x].phase {
	case idle, done:
		return false
	case preparing:
		return !me.refused && (me.ok == m.prepares(i) || !m.has(numberLast))
	case deciding:
	}
	if me.decide || me.result != noResult {
		return false
	}
	return !s.shards[m.wide[x].home()].isReady(firstID + item(i))
}

// answer has a coordinator act on what it saw of its Decide.
func (t *step) answer(x int) {
	if t.s.ids[t.current(t.s, x)].result == resultCommitted {
		t.tell(x, answeredCommitted)
		return
	}
	t.giveBack(x)
}

// crash starts a node anew. The clients of what it coordinated hear nothing.
func (t *step) crash(node int) {
	for x := range t.wide {
		if t.wide[x].node == node && t.works(t.s, x) {
			t.s.wide[x].phase, t.s.wide[x].answer = done, answeredUnknown
		}
	}
}

// works reports whether a coordinator has begun a transaction and not answered.
func (m *model) works(s *state, x int) bool {
	p := &s.wide[x]
	return p.phase != done && p.tries > 0
}

// jump has a coordinator's replica of the home jump by a snapshot. Whether its Decide is
// still to apply it can't know, but what has come of it the state tells until the id is no
// longer open.
func (t *step) jump(x int) {
	i := t.current(t.s, x)
	sh := &t.s.shards[t.wide[x].home()]
	switch {
	case sh.holds[i] != 0:
		t.tell(x, answeredUnknown)
	case t.s.ids[i].n != 0:
		t.tell(x, answeredCommitted)
	case !t.has(absenceOnlyHeld): // nor does a tombstone tell what came of it
		t.tell(x, answeredAborted)
	case sh.tombs[i] == tombCommitted:
		t.tell(x, answeredCommitted)
	case sh.tombs[i] == tombAborted:
		t.giveBack(x)
	case t.unprepared(i):
		t.tell(x, answeredUnknown)
	default:
		t.fail(answers, "the home knows nothing of %s, which is open", t.name(i))
	}
}
