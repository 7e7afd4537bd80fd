package shard

import (
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// Observer hears what a data shard's replica does, to measure it. Its methods are
// called often, by many goroutines and with locks held: they must not block and
// must not call the host.
type Observer interface {
	// Applied is told how long a data shard's command took to apply, and whether it
	// was rejected. The operation has etcd's name.
	Applied(operation string, rejected bool, took time.Duration)
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

// Applied does nothing.
func (unobserved) Applied(string, bool, time.Duration) {}

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
	kindLeaseDrop: "LeaseRevoke", kindLeaseEnd: "LeaseRevoke", KindLeaseRevokeHere: "LeaseRevoke", kindDecide: "Txn",
	// etcd has none of these.
	kindGuarded: "", kindFence: "", kindFirstShape: "", kindOrder: "", kindSweep: "", kindAttached: "",
	kindLeaseRegister: "", kindLeaseForget: "", kindDropTombstones: "",
	kindPrepare: "", kindPrepareUnnumbered: "", kindFinish: "", kindAbort: "", kindForgetCommitted: "",
}

// observe tells of a command that was applied.
func (d *Data) observe(c raft.Command, rejected error, took time.Duration) {
	if name := d.operation(c); name != "" {
		d.observer.Applied(name, rejected != nil, took)
	}
}

// operation returns the name of a command, or nothing for one that etcd has not.
func (d *Data) operation(c raft.Command) string {
	for Kind(c.Kind) == kindGuarded || Kind(c.Kind) == kindAttached {
		var rest []byte
		var err error
		if Kind(c.Kind) == kindGuarded {
			_, rest, err = cutGuard(c.Payload)
		} else {
			_, rest, err = cutVerdicts(c.Payload)
		}
		if err != nil || len(rest) == 0 {
			return ""
		}
		c.Kind, c.Payload = raft.Kind(rest[0]), rest[1:]
	}
	return operations[Kind(c.Kind)]
}
