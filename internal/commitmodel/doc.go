// Package commitmodel goes through all states of a small model of the protocol by which
// one transaction writes on several shards. It has tests alone.
//
// # State
//
// Three shards, each with two keys. A shard has what its log has made of it: revision, fence,
// holds with their bounds, tombstones, marks; and what its leader has in memory: commands that
// have a number and have not applied, and the line of those that wait for holds. The oracle is
// a counter. Coordinators are on nodes, which start anew under a later instance. Messages are on
// their way until they are delivered, in any order. Of a key there is the revision of its newest
// version, and the highest revision at which anybody may have seen it.
//
// A log is no more than the order in which its entries apply. That leaves nothing out. An
// entry that has been proposed and has not applied is seen by its leader alone, which counts
// its number as under way: the number is kept. Else it is as good as a message that is still to
// come. With a new leader each entry under way applies before the new term's begin entry or
// never, whoever proposed it: so a change of leader is one step, what survives it applies
// before, and what the old leader had in memory is gone after. Messages outlive the change and
// meet the new leader, so that a Prepare of an old term comes late. A replica that lags
// is the shard as it was, and whatever reads it might have read then; where that is wrong is a rule
// (viewAfterPromise, finishApplied).
//
// # Actions
//
// Clients begin transactions over two or three shards, also with a compare that decides what is
// written, and with a home that need not be prepared, writes and transactions of one shard, and
// linearizable reads. A right is taken away that the transactions were checked for. A lease runs out whose key they write. The rest
// is the protocol: shard_test.go is what shards apply, meet_test.go how commands meet,
// coordinator_test.go what coordinators do, reader_test.go readers and leases.
//
// Faults have budgets: a node starts anew, a shard's leader changes, a message is lost or comes
// twice, a coordinator gives up without a reason, a home takes a living coordinator for dead, a
// coordinator's replica jumps over the outcome. That a home's leader is right to take a
// coordinator for dead is left to it: all that depends on it is how long others wait.
//
// # What is checked
//
//   - Atomicity: where a transaction commits, all its participants hold for it, each drops its
//     hold only by applying its share, and no transaction commits twice.
//   - Isolation: what a transaction looked at is the newest below its revision n; no version
//     goes in at a revision at which the key may have been seen: by a read, a transaction's look,
//     a write, or a watch, which sees each key up to what is resolved after each step. Numbers
//     are given out between call and answer, so that their order is that of real time.
//   - Answers: nobody is told that something committed which did not, or the reverse.
//   - Rights: nothing commits at a revision beyond an acknowledged loss of its right.
//   - Leases: one that was renewed does not end.
//   - Liveness: where nothing more happens by itself, every client has its answer or its node
//     has died, and no hold, waiting command or outcome is left. No run goes on for ever
//     (TestRunsEnd), so that all runs come there.
//
// States that nothing can tell apart from now on count as one (canonical_test.go); the rest is
// plain breadth-first search, so that what is found is a shortest run.
//
// # Rules
//
// Each rule of the protocol can be left out; then TestRules finds the run that breaks a promise,
// and shows it with -v. With all rules TestSpaces finds nothing in 36 spaces of 3 million
// states together, and with LATCHKEY_COMMITMODEL_LARGE=1 in ten of 61 million, which take up to 22
// million states each, minutes and gigabytes.
//
// TestWalks adds random runs of three transactions, three commands of one shard and two reads,
// with all faults.
//
// # Left out
//
// Values and ranges: keys stand for spans, versions for values. Compaction, hashes, snapshots
// of stores, spans that move. How numbers and promises come about, which has its own proof
// (internal/raft). More than six ids, three tries of one transaction, three shards.
package commitmodel
