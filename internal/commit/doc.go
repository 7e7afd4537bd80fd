// Package commit is what data shards keep of transactions that write keys of several of
// them, and what is said of one in the shards' logs: two-phase commit whose participants and
// whose decision are replicated.
//
//	prepare   at each participant: hold the keys that the transaction names
//	decide    at the home, one of the participants: it commits, at the decision's number
//	finish    at the others: make the changes at that number, let the keys go
//	abort     anywhere before the decision: let the keys go, and never hold any
//
// It knows formats and records, and neither Raft nor the keys themselves.
package commit
