// Package lease keeps the leases of one shard.
//
// It has two halves that know nothing of each other:
//
//	Table  every replica   what a lease is: TTL, incarnation, its keys. Changed
//	                       only by applied commands, so all replicas agree.
//	Clock  the leader only how long a lease still has. Memory only, gone with
//	                       the leadership.
//
// The package starts no goroutine, reads no clock and draws no random number.
// Time comes in as a time.Duration: the caller's monotonic reading, counted from
// any fixed moment of its process.
//
// # The promise
//
// A lease never ends before its TTL has passed since it was granted or last
// renewed. It may end later. Everything in Clock errs to that side:
//
//   - Clock has a time of its own that never runs faster than the caller's. A
//     firing moves it by the time since the last one, but by two ticks at most;
//     the rest is forgotten, not caught up. A process that was stopped for a
//     minute thus wakes with its leases a moment older, not a minute.
//   - After a firing that came late nothing ends for a few ticks, so that
//     renewals which waited while the process stood still are read first.
//   - A new leader gives every lease its full TTL, for it can't know what its
//     predecessor renewed. Only a lease that the predecessor logged as aging gets
//     the remainder that was logged.
//
// # The life of a lease on the clock
//
//	         Grant, Start
//	              |         Renew
//	              v        +------+
//	+---------> live <-----+      |
//	|             | half the TTL passed in silence: AgingDue
//	|             v
//	|           aged    a renewal is answered only behind a logged "fresh"
//	|             | TTL passed: Due
//	| Withdraw    v
//	+--------- ending   renewals wait for the outcome
//	              | applied
//	              v
//	            Remove
//
// From the moment AgingDue hands a lease out, a remainder may be in the log, and
// the next leader would go by it. A renewal must then not be answered before a
// "fresh" has been applied behind it; Renew says so, and Fresh ends that state.
package lease
