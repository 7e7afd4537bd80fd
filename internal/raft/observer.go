package raft

import "time"

// Observer hears what the replicas of a host do, to measure it. Its methods are
// called often, by many goroutines and with locks held: they must not block and
// must not call the host.
type Observer interface {
	// LogSaved is told how many bytes were written to the log, and how long it took to write
	// them and to make them durable.
	LogSaved(bytes int, took time.Duration)
	// StateCommitted is told how long the commit of a run of applied commands to
	// Pebble took, which syncs nothing.
	StateCommitted(took time.Duration)
	// ProposalFailed is told of a command that nobody will see the result of: it
	// was not applied, or its caller did not wait that long.
	ProposalFailed()
	// Confirmed is told how long a proof of leadership took and why it failed.
	Confirmed(took time.Duration, err error)
	// SnapshotLoading is told when a replica begins to replace its state by a snapshot
	// from another node, and when that has ended.
	SnapshotLoading(begun bool)
}

// unobserved is the observer of a host that has none.
type unobserved struct{}

var _ Observer = unobserved{}

// LogSaved does nothing.
func (unobserved) LogSaved(int, time.Duration) {}

// StateCommitted does nothing.
func (unobserved) StateCommitted(time.Duration) {}

// ProposalFailed does nothing.
func (unobserved) ProposalFailed() {}

// Confirmed does nothing.
func (unobserved) Confirmed(time.Duration, error) {}

// SnapshotLoading does nothing.
func (unobserved) SnapshotLoading(bool) {}

// Pending returns the number of commands that wait for the log or are under way.
func (r *Replica) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.queuedLocked()
	for _, a := range r.asks {
		n += len(a.calls)
	}
	for _, g := range r.ready {
		n += len(g.calls)
	}
	for _, f := range r.flight {
		n += len(f.calls)
	}
	return n
}
