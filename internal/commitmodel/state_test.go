package commitmodel

// state is all that a run has come to. It has no pointers and no padding, so that equal
// states are equal bytes.
type state struct {
	counter uint8 // the oracle's
	acked   uint8 // 1 + counter when the right was acknowledged as taken away
	left    faults
	shards  [maxShards]shard
	ids     [maxIDs]id
	wide    [maxWide]progress
	narrow  [maxNarrow]write
	reads   [maxReads]read
	lease   lease
	// nodes count the ids that they have drawn. A node that starts anew goes on
	// counting, as instances are parts of ids and rise.
	nodes [maxWide]uint8
	// newest is the revision of each key's newest version, 0 for none. shown is the
	// highest revision at which anybody may have seen the key: a read, a watch, a
	// transaction's look, a write that knew what it wrote over. Invariant: no version
	// goes in at or below it.
	newest, shown [maxKeys]uint8
}

// shard is the state of one, as its log has left it, and what its leader has in memory.
type shard struct {
	rev uint8
	// promised is the highest revision of which a promise was made.
	promised uint8
	fenced   bool
	// holds are 1 + the bound of each id that holds here.
	holds [maxIDs]uint8
	tombs [maxIDs]tomb
	// marks say of each node below which number its ids are refused.
	marks [maxWide]uint8
	// ready are the leader's commands that have a number and have not applied, in the
	// order of the numbers; line is what waits for holds, in the order of arrival.
	ready [maxReady]numbered
	line  [maxLine]item
}

// tomb is what a shard remembers of an id that ended there.
type tomb uint8

const (
	noTomb tomb = iota
	tombAborted
	tombCommitted
)

// item is a command that waits for holds or has a number: an id's Prepare or Decide, a write
// of one shard, or the end of the lease.
type item uint8

const (
	noItem     item = 0
	firstID    item = 1
	firstWrite      = firstID + maxIDs
	leaseEnd        = firstWrite + maxNarrow
)

func (i item) id() (int, bool)    { return int(i - firstID), i >= firstID && i < firstWrite }
func (i item) write() (int, bool) { return int(i - firstWrite), i >= firstWrite && i < leaseEnd }

type numbered struct {
	item   item
	number uint8
}

// id is one attempt at a transaction: what its coordinator knows, what its home knows, and
// the messages on their way.
type id struct {
	seq uint8 // its number among those of its node; 0 until it is drawn
	low uint8 // the lowest open one of its node when it was drawn
	// ok are the participants whose Prepare is known to hold; refused is set when one
	// certainly did nothing.
	ok      shardSet
	refused bool
	result  result // what came of Decide, as the coordinator sees it
	// n is the outcome at the home until it forgets; finished are the others that are
	// known to have applied Finish.
	n        uint8
	finished shardSet
	// Messages on their way, to each shard.
	prepare, release shardSet
	decide           bool
	// committed is n, for good: no part of the protocol.
	committed uint8
	// look is 1 + the version of each key that Prepare found.
	look [maxKeys]uint8
}

type result uint8

const (
	noResult result = iota
	resultAborted
	resultCommitted
)

// progress is what a coordinator does for a transaction.
type progress struct {
	phase  phase
	tries  uint8 // ids drawn
	answer answer
	age    uint8 // lower is older
}

type phase uint8

const (
	idle phase = iota // not begun, or to begin again
	preparing
	deciding
	done
)

type answer uint8

const (
	noAnswer answer = iota
	answeredCommitted
	answeredAborted
	answeredUnknown
)

// write is what has become of a command of one shard.
type write struct {
	phase writePhase
	age   uint8
}

type writePhase uint8

const (
	writeIdle writePhase = iota
	writeReady
	writeWaits
	writeDone
)

// read is a linearizable read.
type read struct {
	h      uint8 // 1 + H, 0 before it begins
	early  bool  // without viewAfterPromise: whether it has seen which holds there are
	viewed shardSet
	done   shardSet
	// waits are the ids that held something of it in the first view of each shard.
	waits [maxShards]uint8
}

// lease is one that key a hangs on.
type lease struct {
	phase    leasePhase
	ran      bool // it has run out before
	renewed  bool
	ranAgain bool // it has run out since
	ending   bool // its end has a number
	skipped  bool // its end has been skipped
}

type leasePhase uint8

const (
	leaseAlive leasePhase = iota
	leaseDue
	leaseEnded
)

// first returns the id with which a transaction begins; its others follow.
func (m *model) first(x int) int { return x * m.tries }

// of returns the transaction of an id.
func (m *model) of(i int) (x int, w *wide) {
	x = i / m.tries
	return x, &m.wide[x]
}

// unprepared reports whether the home of an id is not prepared.
func (m *model) unprepared(i int) bool {
	x, w := m.of(i)
	return w.puts && i == m.first(x)
}

// prepares returns the shards that an id is to hold on.
func (m *model) prepares(i int) shardSet {
	_, w := m.of(i)
	if m.unprepared(i) {
		return w.keys().shards() &^ (1 << w.home())
	}
	return w.keys().shards()
}

// current returns the id that a transaction's coordinator works on, if it has drawn one.
func (m *model) current(s *state, x int) int {
	if !m.has(oneID) {
		return m.first(x)
	}
	return m.first(x) + int(s.wide[x].tries) - 1
}

// open reports whether an id's coordinator still works on it.
func (m *model) open(s *state, i int) bool {
	x, _ := m.of(i)
	p := &s.wide[x]
	return (p.phase == preparing || p.phase == deciding) && m.current(s, x) == i
}

// age returns the age of what waits in a line.
func (m *model) age(s *state, it item) uint8 {
	if i, ok := it.id(); ok {
		x, _ := m.of(i)
		return s.wide[x].age
	}
	w, _ := it.write()
	return s.narrow[w].age
}

// claims returns what an item reads and writes on a shard.
func (m *model) claims(it item, shard int) (reads, writes keySet) {
	if i, ok := it.id(); ok {
		_, w := m.of(i)
		return w.reads.on(shard), w.writes.on(shard)
	}
	if w, ok := it.write(); ok {
		return m.narrow[w].reads.on(shard), m.narrow[w].writes.on(shard)
	}
	return 0, keyA.on(shard)
}

// meet reports whether two items conflict on a shard.
func (m *model) meet(a, b item, shard int) bool {
	ar, aw := m.claims(a, shard)
	br, bw := m.claims(b, shard)
	if !m.has(readsMeetHolds) {
		ar, br = m.prepared(a, ar), m.prepared(b, br)
	}
	return aw&(br|bw) != 0 || ar&bw != 0
}

// prepared returns the reads of what is prepared, and none of others.
func (m *model) prepared(it item, reads keySet) keySet {
	if _, ok := it.id(); ok {
		return reads
	}
	return 0
}

// push adds to the end of a shard's ready commands.
func (sh *shard) push(it item, number uint8) {
	for i := range sh.ready {
		if sh.ready[i].item == noItem {
			sh.ready[i] = numbered{it, number}
			return
		}
	}
	panic("no room for a numbered command")
}

// isReady reports whether a command is among a shard's ready ones.
func (sh *shard) isReady(it item) bool {
	for _, n := range sh.ready {
		if n.item == it {
			return true
		}
	}
	return false
}

// pop takes the first of a shard's ready commands.
func (sh *shard) pop() numbered {
	head := sh.ready[0]
	copy(sh.ready[:], sh.ready[1:])
	sh.ready[maxReady-1] = numbered{}
	return head
}

// queue adds to the end of a shard's line.
func (sh *shard) queue(it item) {
	for i := range sh.line {
		if sh.line[i] == noItem {
			sh.line[i] = it
			return
		}
	}
	panic("no room in the line")
}

// leave takes an item out of a shard's line.
func (sh *shard) leave(it item) {
	for i := range sh.line {
		if sh.line[i] == it {
			copy(sh.line[i:], sh.line[i+1:])
			sh.line[maxLine-1] = noItem
			return
		}
	}
}

// waits reports whether an item stands in a shard's line.
func (sh *shard) waits(it item) bool {
	for _, other := range sh.line {
		if other == it {
			return true
		}
	}
	return false
}
