package raft

import "errors"

// The outcomes of a call on a replica that is no result of the state machine.
var (
	// ErrTimeout is returned when a command was handed to Raft and its outcome
	// is unknown: it may have been applied, and may yet be.
	ErrTimeout = errors.New("raft: outcome unknown")
	// ErrNotLeader is returned when this replica does not lead the shard, or no
	// longer leads it in the term that the call was aimed at. Nothing was
	// applied and nothing will be.
	ErrNotLeader = errors.New("raft: not leader")
	// ErrNotApplied is returned when a command certainly was not applied and
	// never will be. The origin may send it again under a new id.
	ErrNotApplied = errors.New("raft: not applied")
	// ErrStopped is returned when the replica has been closed.
	ErrStopped = errors.New("raft: stopped")
	// ErrTooManyRequests is returned when the replica's queue is full. Nothing
	// was proposed.
	ErrTooManyRequests = errors.New("raft: too many requests")
	// ErrRequestTooLarge is returned for a command whose payload exceeds
	// MaxPayload. Nothing was proposed.
	ErrRequestTooLarge = errors.New("raft: request too large")
)
