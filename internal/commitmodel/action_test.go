package commitmodel

import "fmt"

// action is one thing that can happen next; a and b say to whom.
type action struct {
	kind kind
	a, b uint8
}

type kind uint8

// Those before crash are progress: they happen in the end wherever nothing else does. The
// others are faults, which have budgets, and what clients need not do.
const (
	beginTxn kind = iota
	deliverPrepare
	advance
	giveUp
	wound
	sendDecide
	numberDecide
	applyReady
	hearResult
	deliverFinish
	deliverRelease
	deliverQuestion
	forgetOutcome
	submitWrite
	startRead
	viewShard
	readShard
	raiseFence
	runOut
	endLease

	crashNode
	changeLeader
	losePrepare
	loseRelease
	loseDecide
	doublePrepare
	doubleRelease
	doubleDecide
	doubleFinish
	lateQuestion
	timeOut
	suspect
	jumpOver
	presumeFinish // without finishApplied
	renewLease
	kinds
)

func (a action) progress() bool { return a.kind < crashNode }

// actions appends all that can happen next to buf.
func (m *model) actions(s *state, buf []action) []action {
	add := func(k kind, a, b int, when bool) {
		if when {
			buf = append(buf, action{k, uint8(a), uint8(b)})
		}
	}
	for x := range m.wide {
		m.ofTransaction(s, x, add)
	}
	for i := range m.tries * len(m.wide) {
		if s.ids[i].seq != 0 {
			m.ofID(s, i, add)
		}
	}
	for p := range m.shards() {
		m.ofShard(s, p, add)
	}
	for w := range m.narrow {
		it := firstWrite + item(w)
		add(submitWrite, w, 0, s.narrow[w].phase == writeIdle ||
			s.narrow[w].phase == writeWaits && m.turn(s, it, m.shardOf(w)) == goes)
	}
	for r := range m.reads {
		add(startRead, r, 0, s.reads[r].h == 0)
		for p := range m.shards() {
			add(viewShard, r, p, m.viewable(s, r, p))
			add(readShard, r, p, m.readable(s, r, p))
		}
	}
	if m.lease {
		l := &s.lease
		add(runOut, 0, 0, l.phase == leaseAlive && (!l.ran || l.renewed && !l.ranAgain))
		add(endLease, 0, 0, m.endable(s))
		add(renewLease, 0, 0, l.phase == leaseDue && !l.ending && !l.renewed)
	}
	return buf
}

type adder func(k kind, a, b int, when bool)

// ofTransaction adds what a coordinator can do, and what can happen to it.
func (m *model) ofTransaction(s *state, x int, add adder) {
	p := &s.wide[x]
	add(beginTxn, x, 0, p.phase == idle)
	if p.tries == 0 {
		return
	}
	me := &s.ids[m.current(s, x)]
	undecided := p.phase == preparing || p.phase == deciding && !m.has(releaseByAbort) && me.result == noResult
	add(giveUp, x, 0, m.stranded(s, x))
	add(wound, x, 0, m.wounded(s, x))
	add(sendDecide, x, 0, m.decidable(s, x))
	add(hearResult, x, 0, p.phase == deciding && me.result != noResult)
	add(timeOut, x, 0, s.left.timeouts > 0 && undecided)
	add(jumpOver, x, 0, s.left.jumps > 0 && p.phase == deciding)
	add(crashNode, m.wide[x].node, 0, s.left.crashes > 0 && m.works(s, x))
}

// ofID adds what can happen to an id's messages, its holds and its outcome.
func (m *model) ofID(s *state, i int, add adder) {
	_, w := m.of(i)
	me, home, all := &s.ids[i], w.home(), w.keys().shards()
	// What the home knows to have committed its leader finishes: a question changes nothing.
	undecided := me.n == 0 && s.shards[home].tombs[i] != tombCommitted
	add(numberDecide, i, 0, me.decide)
	add(doubleDecide, i, 0, me.decide && s.left.doubled > 0)
	add(loseDecide, i, 0, me.decide && s.left.lost > 0)
	add(forgetOutcome, i, 0, me.n != 0 && me.finished == all&^(1<<home))
	for p := range maxShards {
		if !all.has(p) {
			continue
		}
		held := s.shards[p].holds[i] != 0
		add(deliverPrepare, i, p, me.prepare.has(p))
		add(losePrepare, i, p, me.prepare.has(p) && s.left.lost > 0)
		add(doublePrepare, i, p, me.prepare.has(p) && s.left.doubled > 0)
		add(deliverRelease, i, p, me.release.has(p))
		add(loseRelease, i, p, me.release.has(p) && s.left.lost > 0)
		add(doubleRelease, i, p, me.release.has(p) && s.left.doubled > 0)
		add(deliverFinish, i, p, me.n != 0 && p != home && !me.finished.has(p))
		add(doubleFinish, i, p, me.committed != 0 && p != home && me.finished.has(p) && s.left.doubled > 0)
		add(presumeFinish, i, p, me.n != 0 && p != home && !me.finished.has(p) && !m.has(finishApplied))
		add(deliverQuestion, i, p, held && undecided && !me.release.has(p) && !m.open(s, i))
		add(suspect, i, p, held && undecided && !me.release.has(p) && m.open(s, i) && s.left.suspects > 0)
		add(lateQuestion, i, p, !held && me.ok.has(p) && s.left.doubled > 0)
	}
}

// ofShard adds what a shard and its leader can do, and what can happen to them.
func (m *model) ofShard(s *state, p int, add adder) {
	sh := &s.shards[p]
	if i, ok := sh.ready[0].item.id(); ok {
		// Without numberLast a number is taken early, and used when all hold.
		add(applyReady, p, 0, m.has(numberLast) || s.ids[i].ok == m.prepares(i))
	} else {
		add(applyReady, p, 0, sh.ready[0].item != noItem)
	}
	for _, it := range sh.line {
		if it == noItem {
			break
		}
		if i, ok := it.id(); ok {
			add(advance, p, i, m.turn(s, it, p) != waits)
		}
	}
	memory := sh.ready[0].item != noItem || sh.line[0] != noItem
	add(changeLeader, p, 0, s.left.changes > 0 && (memory || !m.has(tombsUntilMarks) && sh.tombs != [maxIDs]tomb{}))
	add(raiseFence, p, 0, m.fence && !sh.fenced)
}

// do carries out an action and returns the promise that it breaks, if it does.
func (m *model) do(s *state, act action) (bad string) {
	t := step{model: m, s: s}
	if act.progress() {
		t.progress(act.kind, int(act.a), int(act.b))
	} else {
		t.fault(act.kind, int(act.a), int(act.b))
	}
	return t.bad
}

func (t *step) progress(k kind, a, b int) {
	switch k { //nolint:exhaustive // the others are faults
	case beginTxn:
		t.begin(a)
	case deliverPrepare:
		t.s.ids[a].prepare &^= 1 << b
		t.prepare(a, b)
	case advance:
		t.prepare(b, a)
	case giveUp, wound:
		t.giveBack(a)
	case sendDecide:
		t.s.wide[a].phase = deciding
		t.s.ids[t.current(t.s, a)].decide = true
	case numberDecide:
		t.s.ids[a].decide = false
		t.number(a)
	case applyReady:
		t.applyReady(a)
	case hearResult:
		t.answer(a)
	case deliverFinish:
		t.finish(a, b)
	case deliverRelease:
		t.s.ids[a].release &^= 1 << b
		t.release(a, b)
	case deliverQuestion:
		t.question(a, b)
	case forgetOutcome:
		t.forget(a)
	case submitWrite:
		t.write(a)
	case startRead:
		t.start(a)
	case viewShard:
		t.view(a, b)
	case readShard:
		t.read(a, b)
	case raiseFence:
		t.raise(a)
	case runOut:
		t.s.lease.ranAgain = t.s.lease.ran
		t.s.lease.ran, t.s.lease.phase = true, leaseDue
	case endLease:
		t.end()
	}
}

func (t *step) fault(k kind, a, b int) {
	left := &t.s.left
	switch k { //nolint:exhaustive // the others are progress
	case crashNode:
		left.crashes--
		t.crash(a)
	case changeLeader:
		left.changes--
		t.change(a)
	case losePrepare:
		left.lost--
		t.s.ids[a].prepare &^= 1 << b
	case loseRelease:
		left.lost--
		t.s.ids[a].release &^= 1 << b
	case loseDecide:
		left.lost--
		t.s.ids[a].decide = false
	case doublePrepare:
		left.doubled--
		t.prepare(a, b)
	case doubleRelease:
		left.doubled--
		t.release(a, b)
	case doubleDecide:
		left.doubled--
		t.number(a)
	case doubleFinish:
		left.doubled--
		t.finish(a, b)
	case lateQuestion:
		left.doubled--
		t.question(a, b)
	case timeOut:
		left.timeouts--
		t.giveBack(a)
	case suspect:
		left.suspects--
		t.question(a, b)
	case jumpOver:
		left.jumps--
		t.jump(a)
	case presumeFinish:
		t.s.ids[a].finished |= 1 << b
	case renewLease:
		t.s.lease.phase, t.s.lease.renewed = leaseAlive, true
	}
}

// number gives an id's Decide a number of its home.
func (t *step) number(i int) {
	_, w := t.of(i)
	t.s.counter++
	t.s.shards[w.home()].push(firstID+item(i), t.s.counter)
}

// applyReady has a shard apply the next of the commands that have numbers.
func (t *step) applyReady(p int) {
	head := t.s.shards[p].pop()
	if i, ok := head.item.id(); ok {
		t.decide(i, head.number)
		return
	}
	if w, ok := head.item.write(); ok {
		t.applyWrite(w, head.number)
		return
	}
	t.applyEnd(head.number)
}

// name returns what traces call an id: its transaction and which of its ids it is.
func (m *model) name(i int) string {
	x, _ := m.of(i)
	return fmt.Sprintf("T%d.%d", x+1, i-m.first(x)+1)
}

// describe says in words what an action is.
func (m *model) describe(s *state, act action) string {
	a, b := int(act.a), int(act.b)
	format := [kinds]string{
		beginTxn: "T%d begins", giveUp: "T%d releases its holds, as a Prepare failed", wound: "T%d gives its holds back to an older one",
		sendDecide: "T%d sends Decide", hearResult: "T%d's coordinator sees what came of Decide", timeOut: "T%d times out and releases its holds",
		jumpOver: "the home's replica at T%d's coordinator jumps", submitWrite: "write %d asks for a number",
		deliverPrepare: "%s: Prepare comes to shard %d", deliverFinish: "%s: Finish applies on shard %d", deliverRelease: "%s: Release applies on shard %d",
		deliverQuestion: "%s: a question of shard %d applies at the home", losePrepare: "%s: Prepare to shard %d is lost",
		loseRelease: "%s: Release to shard %d is lost", loseDecide: "%s: Decide is lost", doublePrepare: "%s: Prepare comes to shard %d, and will again",
		doubleRelease: "%s: Release applies on shard %d, and will again", doubleDecide: "%s: Decide gets a number, and will again",
		doubleFinish: "%s: Finish applies on shard %d once more", lateQuestion: "%s: a late question of shard %d applies at the home",
		suspect: "%s: a question of shard %d applies at the home, which takes the coordinator for dead", numberDecide: "%s: Decide gets a number",
		forgetOutcome: "%s: the home forgets the outcome", applyReady: "shard %d applies its next numbered command", advance: "shard %d: %s's Prepare leaves the line",
		changeLeader: "shard %d gets another leader", raiseFence: "shard %d is fenced", startRead: "read %d asks the oracle for H",
		viewShard: "read %d has its first view of shard %d", readShard: "read %d reads shard %d", crashNode: "node %d starts anew",
		presumeFinish: "%s: a replica of shard %d that lags does not hold yet, which is taken for Finish", runOut: "the lease runs out", endLease: "the lease's end gets a number", renewLease: "the lease is renewed",
	}[act.kind]
	switch act.kind {
	case beginTxn, giveUp, wound, sendDecide, hearResult, timeOut, jumpOver, submitWrite, startRead:
		return fmt.Sprintf(format, a+1)
	case viewShard, readShard:
		return fmt.Sprintf(format, a+1, b)
	case deliverPrepare, deliverFinish, deliverRelease, deliverQuestion, losePrepare, loseRelease, doublePrepare, doubleRelease,
		doubleFinish, lateQuestion, suspect, presumeFinish:
		return fmt.Sprintf(format, m.name(a), b)
	case loseDecide, doubleDecide, numberDecide, forgetOutcome:
		return fmt.Sprintf(format, m.name(a))
	case applyReady:
		return fmt.Sprintf(format, a) + ", " + m.nameItem(s.shards[a].ready[0])
	case advance:
		return fmt.Sprintf(format, a, m.name(b))
	case changeLeader, raiseFence, crashNode:
		return fmt.Sprintf(format, a)
	case runOut, endLease, renewLease:
		return format
	case kinds:
	}
	panic("no such action")
}

// nameItem says what a numbered command is.
func (m *model) nameItem(n numbered) string {
	if i, ok := n.item.id(); ok {
		return fmt.Sprintf("%s's Decide at %d", m.name(i), n.number)
	}
	if w, ok := n.item.write(); ok {
		return fmt.Sprintf("write %d at %d", w+1, n.number)
	}
	return fmt.Sprintf("the end of the lease at %d", n.number)
}
