package shard

import (
	"context"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// Ahead is a renewal that nothing proves yet: it counts if the mark is passed.
type Ahead struct {
	// TTL is the lease's, in seconds; 0 says that nothing was renewed.
	TTL int64
	raft.Mark
}

// RenewAhead gives a lease its full TTL from the moment of the call, if nothing has to be logged for that or
// waited for, and this node leads the shard when the mark is passed. Errors are those of Renew.
func (d *Data) RenewAhead(_ context.Context, id int64) (a Ahead, err error) {
	n, ok := d.keeper.renew(id)
	if !ok {
		return a, raft.ErrNotLeader
	}
	rec, ok := d.leases.Get(id)
	if !ok || rec.Ending || n.Status != lease.Live {
		return a, nil
	}
	// The mark is behind the renewal: whoever leads next had not begun then.
	if a.Mark, ok = d.replica.Mark(n.term); !ok {
		return a, raft.ErrNotLeader
	}
	a.TTL = rec.TTL
	d.observer.LeaseRenewed()
	return a, nil
}
