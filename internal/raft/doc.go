// Package raft runs Raft groups, called shards: it turns commands into log entries,
// has a Machine apply them to the state, proves leadership for reads, and carries the
// state to replicas that fell behind. It is the only package that knows the Raft
// library, dragonboat, whose packages raftio and raftpb are no part of it. What a
// command means it does not know.
//
//	Host       the replicas of one process that share a Raft log
//	Replica    one member of one shard: Propose, Confirm, who leads
//	Machine    what a replica keeps and applies commands to
//	Leadership what a leader keeps in memory, and ticks
//
// # The leader's write path
//
//		caller -> queue -> batch (term, number, commands) -> Raft log -> apply -> caller
//
//	 1. The Raft library reports this replica leader in term T. It proposes
//	    Begin(T) until its own state has applied it. Only then does it serve.
//	 2. The proposer makes one entry of what waits, with the next number of the
//	    term. At most two are under way.
//	 3. A replica accepts a batch only if its term is that of the last Begin and
//	    its number is above the last accepted: a deposed leader's entries and
//	    entries that the network doubled do nothing.
//	 4. A batch is settled when it applied here, when the library dropped it here,
//	    or when a later batch of its term, or a Begin above its term, applied here
//	    from the log: then it never applies. If the state jumps by snapshot before
//	    that, whoever waits hears that the outcome is unknown.
//	 5. Nobody but the caller sends a command again, and only after a certain "not
//	    applied".
//
// Reads go through Confirm: a ReadIndex that began after the call, and then the
// library still calling this replica leader in the term served. A completed
// ReadIndex alone proves nothing, since a deposed leader's is answered by its
// successor.
//
// DESIGN.md has the decisions and what they cost.
package raft
