package system

import (
	"context"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// Leader is what only the leader of the system shard can answer. A call is made once;
// one that finds no leader, or that certainly did nothing, returns raft.ErrNotLeader or
// raft.ErrNotApplied.
type Leader interface {
	// Propose puts a command through the log. A replica that has applied the entry at
	// index has applied the command.
	Propose(ctx context.Context, kind raft.Kind, payload []byte) (result any, index uint64, err error)
	// Confirm proves that the leader leads. A replica that has applied the entry at index
	// holds all that was acknowledged before the call.
	Confirm(ctx context.Context) (index uint64, err error)
	// Ask and Prove ask the oracle. See raft.Oracle. voted is what the node that asks has said of its
	// replica before, zero for nothing.
	Ask(ctx context.Context, count int, by raft.Leading, voted raft.Voted) (raft.Block, error)
	Prove(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error)
}

// Here returns this node's replica of the system shard as a leader, which it may not be.
func (c *Cluster) Here() Leader { return here{c} }

// here is the leader as long as it is this node.
type here struct{ c *Cluster }

// Propose puts a command through the log.
func (h here) Propose(ctx context.Context, kind raft.Kind, payload []byte) (result any, index uint64, err error) {
	result, err = h.c.replica.Propose(ctx, kind, payload)
	return result, h.c.replica.Applied(), err
}

// Confirm proves that this node leads.
func (h here) Confirm(ctx context.Context) (index uint64, err error) {
	err = h.c.replica.Confirm(ctx)
	return h.c.replica.Applied(), err
}

// Ask asks the oracle of this node.
func (h here) Ask(ctx context.Context, count int, by raft.Leading, voted raft.Voted) (raft.Block, error) {
	return h.c.askHere(ctx, count, by, voted)
}

// Prove asks the oracle of this node.
func (h here) Prove(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	return h.c.proveHere(ctx, claims)
}

// caller makes calls of the system shard's leader.
func (c *Cluster) caller() *raft.Caller[Leader] {
	caller := &raft.Caller[Leader]{Replica: c.replica, Here: here{c}, Timeout: c.timeout}
	if c.remote != nil {
		caller.Elsewhere = func() (Leader, bool) {
			l := c.remote()
			return l, l != nil
		}
	}
	return caller
}
