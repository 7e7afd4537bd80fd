package shard

import "time"

// Observer hears what the replicas of a host do, to measure it. Its methods are
// called often, by many goroutines and with locks held: they must not block and
// must not call the host.
type Observer interface {
	// LogSaved is told how many bytes of entries a step of Raft wrote to the log, and how
	// long it took to write them and to make them durable.
	LogSaved(bytes int, took time.Duration)
	// StateCommitted is told how long the commit of a run of applied commands to
	// Pebble took, which syncs nothing.
	StateCommitted(took time.Duration)
	// Applied is told how long a data shard's command took to apply, and whether it
	// was rejected. The operation has etcd's name.
	Applied(operation string, rejected bool, took time.Duration)
	// ProposalFailed is told of a command that nobody will see the result of: it
	// was not applied, or its caller did not wait that long.
	ProposalFailed()
	// Confirmed is told how long a proof of leadership took and why it failed.
	Confirmed(took time.Duration, err error)
	// SnapshotLoading is told when a replica begins to replace its state by a snapshot
	// from another node, and when that has ended.
	SnapshotLoading(begun bool)
	// LeaseGranted is told of a grant that was applied, with its TTL in seconds.
	LeaseGranted(ttl int64)
	// LeasesEnded is told how many leases the applied commands have ended, and how
	// many of them because their time had passed.
	LeasesEnded(all, expired int)
	// LeaseRenewed is told of a renewal.
	LeaseRenewed()
	// Swept is told how long it took to free the space of what a compaction made
	// superfluous, and of that the longest step.
	Swept(took, longest time.Duration)
}

// unobserved is the observer of a host that has none.
type unobserved struct{}

var _ Observer = unobserved{}

// LogSaved does nothing.
func (unobserved) LogSaved(int, time.Duration) {}

// StateCommitted does nothing.
func (unobserved) StateCommitted(time.Duration) {}

// Applied does nothing.
func (unobserved) Applied(string, bool, time.Duration) {}

// ProposalFailed does nothing.
func (unobserved) ProposalFailed() {}

// Confirmed does nothing.
func (unobserved) Confirmed(time.Duration, error) {}

// SnapshotLoading does nothing.
func (unobserved) SnapshotLoading(bool) {}

// LeaseGranted does nothing.
func (unobserved) LeaseGranted(int64) {}

// LeasesEnded does nothing.
func (unobserved) LeasesEnded(int, int) {}

// LeaseRenewed does nothing.
func (unobserved) LeaseRenewed() {}

// Swept does nothing.
func (unobserved) Swept(time.Duration, time.Duration) {}

// operations are etcd's names of a data shard's commands. Ends of leases are
// revocations and what is logged of their age checkpoints, as in etcd's log.
var operations = map[Kind]string{
	KindPut: "Put", KindDeleteRange: "DeleteRange", KindTxn: "Txn", KindCompact: "Compaction",
	KindLeaseGrant: "LeaseGrant", KindLeaseRevoke: "LeaseRevoke", kindLeaseExpire: "LeaseRevoke",
	kindLeaseAging: "LeaseCheckpoint", kindLeaseFresh: "LeaseCheckpoint",
	kindLeaseDrop: "LeaseRevoke",
	// etcd has none of these.
	kindGuarded: "", kindFence: "", kindBirth: "", kindOrder: "", kindSweep: "", kindAttached: "",
	kindLeaseRegister: "", kindLeaseForget: "", kindBury: "",
}

// operation returns the name of a command, or nothing for one that etcd has not.
func (d *Data) operation(c Command) string {
	for c.Kind == kindGuarded || c.Kind == kindAttached {
		var rest []byte
		var err error
		if c.Kind == kindGuarded {
			_, rest, err = cutGuard(c.Payload)
		} else {
			_, rest, err = cutVerdicts(c.Payload)
		}
		if err != nil || len(rest) == 0 {
			return ""
		}
		c.Kind, c.Payload = Kind(rest[0]), rest[1:]
	}
	return operations[c.Kind]
}

// Pending returns the number of commands that wait for the log or are under way.
func (r *Replica) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.queue) + len(r.waiting)
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
