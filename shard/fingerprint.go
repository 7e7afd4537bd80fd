package shard

import (
	"context"
	"errors"

	"github.com/latchkey-db/latchkey/mvcc"
)

// Fingerprint is a hash of a data shard's versions. Replicas that hold the same have the
// same Sum wherever Rev and Floor are the same.
type Fingerprint struct {
	// Rev is the newest revision in it, Floor the compaction that was in force, -1 for
	// none.
	Rev, Floor int64
	Sum        uint32
}

// Fingerprint hashes what this replica holds up to revision rev, 0 for its newest, as if
// it had been compacted at floor, if it has not been further. It waits until the replica
// is as far as rev.
func (d *Data) Fingerprint(ctx context.Context, rev, floor int64) (Fingerprint, error) {
	for {
		applied := d.replica.Applied()
		if d.store.Rev() >= rev {
			break
		}
		if err := d.replica.AwaitApplied(ctx, applied+1); err != nil {
			return Fingerprint{}, err
		}
	}
	if err := d.AwaitSettled(ctx, func() bool { return d.store.HeldFrom() >= max(rev, d.store.Rev()) }); err != nil {
		return Fingerprint{}, err
	}
	for {
		v := d.store.View()
		v.Forget(floor)
		sum, floor, rev, err := v.HashRetained(rev)
		v.Close()
		if !errors.Is(err, mvcc.ErrReplaced) {
			return Fingerprint{Rev: rev, Floor: floor, Sum: sum}, err
		}
	}
}
