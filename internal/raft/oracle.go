package raft

import "context"

// Oracle hands out the numbers of the cluster's one order of revisions, and notes to whom.
type Oracle interface {
	// Ask returns count numbers that nobody else gets, for the leadership that will use
	// them. They, and what the block says beside them, are newer than the call: whatever
	// was acknowledged before has a smaller number than any that it hands out. Errors are
	// those of Replica.Confirm and the context's.
	Ask(ctx context.Context, count int, by Leading) (Block, error)
	// Prove says of each claim whether it holds, at one moment after the call, that no later
	// term of its shard has been given numbers; and since when the oracle has noted that.
	// What it can't know it does not prove. Errors are those of Ask.
	Prove(ctx context.Context, claims []Claim) (since Since, proved []bool, err error)
}

// Block is the oracle's answer.
type Block struct {
	// First is the lowest of the numbers asked for, which follow each other.
	First int64
	// Newest is the newest number handed out, these included.
	Newest int64
	// Compacted is the revision below which history is gone, -1 if there was no
	// compaction.
	Compacted int64
}

// Leading is the leadership of a shard in a term.
type Leading struct{ ShardID, Term uint64 }

// Since is a time from which on an oracle has noted which leaderships were given numbers.
// The zero value is none.
type Since struct {
	// Term is the oracle's own.
	Term uint64
	// Unnamed counts the requests of the term, before this time, that named no leadership.
	Unnamed uint64
}

// Claim says of a leadership that Raft proved it in a confirmation that began at or after a
// time: whatever is elected later asks later.
type Claim struct {
	Leading

	Since Since
}
