package commitmodel

import "math/bits"

// Bounds of what a state has room for.
const (
	maxShards = 3
	maxKeys   = 6
	maxWide   = 3 // transactions over several shards
	maxTries  = 3 // ids that one transaction may use
	maxIDs    = 6
	maxNarrow = 3 // writes of one shard
	maxReads  = 2
	maxReady  = 6
	maxLine   = 6
)

// keySet is a set of the keys 0 to 5, called a, b, c, x, y and z. Key k lies on shard k%3.
type keySet uint8

const (
	keyA keySet = 1 << iota
	keyB
	keyC
	keyX
	keyY
	keyZ
)

// on returns the keys of the set that lie on a shard.
func (k keySet) on(shard int) keySet {
	return k & (keyA<<shard | keyX<<shard)
}

// each calls f for every key.
func (k keySet) each(f func(key int)) {
	for rest := k; rest != 0; rest &= rest - 1 {
		f(bits.TrailingZeros8(uint8(rest)))
	}
}

func (k keySet) String() string {
	s := ""
	k.each(func(key int) { s += string("abcxyz"[key]) })
	return s
}

// shardSet is a set of shards.
type shardSet uint8

func (s shardSet) has(shard int) bool { return s>>shard&1 != 0 }

// shards returns where the keys lie.
func (k keySet) shards() (s shardSet) {
	k.each(func(key int) { s |= 1 << (key % maxShards) })
	return s
}

// wide is a transaction over several shards.
type wide struct {
	// node coordinates it.
	node int
	// reads are compared or read, writes are put.
	reads, writes keySet
	// unwritten are compared: once one of them has been written, the transaction
	// takes the branch that writes nothing. They are among reads or writes.
	unwritten keySet
	// puts says that its home has keys that it writes whatever is there: its first attempt does not
	// prepare the home.
	puts bool
	// at is one more than the shard that is its home, 0 for the lowest that may be written.
	at int
}

func (w *wide) keys() keySet { return w.reads | w.writes }

// home is the participant that decides.
func (w *wide) home() int {
	if w.at != 0 {
		return w.at - 1
	}
	return bits.TrailingZeros8(uint8(w.writes.shards()))
}

// narrow is a numbered command of one shard.
type narrow struct{ reads, writes keySet }

func (n *narrow) keys() keySet { return n.reads | n.writes }

// faults are budgets: how often each may happen in one run.
type faults struct {
	crashes  uint8 // a node with all it coordinates, which starts anew at once
	changes  uint8 // the leader of a shard
	lost     uint8 // a message
	doubled  uint8 // a message, or an answer that comes after its reason has gone
	timeouts uint8 // a coordinator gives up though nothing is lost
	suspects uint8 // a home takes a living coordinator for dead
	jumps    uint8 // a coordinator's replica of the home jumps over the outcome
}

// scenario is what clients do, and what may go wrong.
type scenario struct {
	wide   []wide
	narrow []narrow // on one shard each
	reads  []keySet // linearizable reads, over shards too
	tries  int      // ids that each transaction may use
	faults faults
	// lease has key a hang on a lease that runs out once, and is renewed once.
	lease bool
	// fence has a right taken away that all transactions were checked for.
	fence bool
	// ages has the commands meet with ages in every order; else the transactions are
	// older than the writes, and the first the oldest.
	ages bool
}

// rule is one of the protocol's, which a model can be without.
type rule int

// The rules that a promise needs.
const (
	oneID            rule = iota // an id is prepared once; what failed begins again with a new one
	refuseBelowMarks             // a Prepare below a mark is refused
	holdsAtApply                 // holds are enforced where commands apply
	readsMeetHolds               // by what commands read, too
	numberLast                   // n is allotted when every Prepare has applied
	commitNeedsHold              // Decide commits only where the home still holds
	abortLeavesTomb              // what aborted, or was released, leaves a tombstone
	finishLeavesTomb             // so does what finished at a participant
	outcomeStays                 // and at the home, which goes on telling that it committed
	tombsUntilMarks              // tombstones stay until a mark has passed them
	marksOfOpen                  // a mark is the lowest id that its node still works on
	refusedAtDecide              // what is refused does not commit where the home was not prepared
	meetsAtDecide                // nor what meets a hold there
	epochAtDecide                // Decide compares the guard's epoch with the fence
	questionInLog                // a question is a command in the home's log
	absenceOnlyHeld              // absence is abort only to a participant that holds
	releaseByAbort               // after Decide only the home's abort releases
	finishApplied                // the home forgets by entries that applied, not by holds that it misses
	agesInLine                   // older Prepares overtake what waits
	olderWounds                  // what waits has younger transactions give their holds back
	writesWound                  // so do writes of one shard
	skippedNotEnded              // a skipped end of a lease is no end
	resolvedOfSpan               // what watches take for complete stays below holds
	viewsCarryHolds              // a read waits for the holds of its first view
	viewAfterPromise             // which is taken when H has been promised
	readBelowHolds               // a read that meets holds is not at the view's revision
	neverBelowH                  // nor below H
	// youngerGivesBack is not needed, see TestYoungerMayWait: a Prepare that meets the
	// hold of an older transaction fails.
	youngerGivesBack
	rules
)

func (r rule) String() string {
	return [rules]string{
		"oneID", "refuseBelowMarks", "holdsAtApply", "readsMeetHolds", "numberLast", "commitNeedsHold", "abortLeavesTomb", "finishLeavesTomb", "outcomeStays",
		"tombsUntilMarks", "marksOfOpen", "refusedAtDecide", "meetsAtDecide", "epochAtDecide", "questionInLog", "absenceOnlyHeld", "releaseByAbort", "finishApplied", "agesInLine", "olderWounds", "writesWound",
		"skippedNotEnded", "resolvedOfSpan", "viewsCarryHolds", "viewAfterPromise", "readBelowHolds", "neverBelowH", "youngerGivesBack",
	}[r]
}

// model is a scenario under the protocol, less some of its rules.
type model struct {
	scenario
	removed [rules]bool
}

// has reports whether the protocol has a rule.
func (m *model) has(r rule) bool { return !m.removed[r] }

// without returns the scenario under the protocol less some rules.
func (sc scenario) without(removed ...rule) *model {
	m := &model{scenario: sc}
	for _, r := range removed {
		m.removed[r] = true
	}
	return m
}

// shards returns how many shards the scenario uses.
func (m *model) shards() int {
	var used shardSet
	for i := range m.wide {
		used |= m.wide[i].keys().shards()
	}
	for i := range m.narrow {
		used |= m.narrow[i].keys().shards()
	}
	for _, k := range m.reads {
		used |= k.shards()
	}
	return bits.Len8(uint8(used))
}
