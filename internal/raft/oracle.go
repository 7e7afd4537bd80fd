package raft

import "context"

// Oracle hands out the numbers of the cluster's one order of revisions.
type Oracle interface {
	// Ask returns count numbers that nobody else gets. They, and what the block
	// says beside them, are newer than the call: whatever was acknowledged before
	// has a smaller number than any that it hands out. Errors are those of
	// Replica.Confirm and the context's.
	Ask(ctx context.Context, count int) (Block, error)
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
