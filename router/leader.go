package router

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/shard"
)

// Leader is what only the leader of a data shard can answer. A call is made once; one
// that finds no leader, or that certainly did nothing, returns raft.ErrNotLeader or
// raft.ErrNotApplied. The methods are those of shard.Data, which is this node's
// leader. What came of a write that was forwarded to another node this node's replica tells.
type Leader interface {
	leaseKeeper

	// Write puts a request through the log. Errors are those of shard.Data, unless the outcome
	// is unknown: then raft.ErrTimeout.
	Write(ctx context.Context, g *shard.Guard, kind shard.Kind, request proto.Message) (result any, err error)
	Confirm(ctx context.Context) (index uint64, err error)
	Promise(ctx context.Context, rev int64, reads []keys.Span) (index uint64, err error)
	// Take has the shard take a step of a transaction over several shards. What Write says of
	// errors holds.
	Take(ctx context.Context, g *shard.Guard, s *shard.Step) (result any, err error)
	Finish(ctx context.Context, list []commit.Finish) error
	Abort(ctx context.Context, id commit.ID) (commit.Outcome, error)
	Settled(ctx context.Context, id commit.ID) (commit.Outcome, error)
	Raise(ctx context.Context, f shard.Fence) (index uint64, err error)
	SweepTo(ctx context.Context, rev int64) error
}

// leaseKeeper is the part of a leader that concerns leases.
type leaseKeeper interface {
	Renew(ctx context.Context, id int64) (ttl int64, err error)
	RenewAhead(ctx context.Context, id int64) (shard.Ahead, error)
	TimeToLive(ctx context.Context, id int64, keys bool) (shard.LeaseLife, bool, error)
	AwaitEnded(ctx context.Context, id int64) error
	Register(ctx context.Context, id int64, shardID uint64) (incarnation uint64, err error)
	Drop(ctx context.Context, ended []lease.Ref) error
}

var _ Leader = (*shard.Data)(nil)

// Leaders finds the leaders of shards on other nodes.
type Leaders interface {
	// Leader returns the leader of a shard as far as this node knows, nil if it is not
	// known or is this node's own replica.
	Leader(shardID uint64) Leader
	// At returns the node that Leader is on, 0 where that is nil.
	At(shardID uint64) (node uint64)
	// Open asks a node whether it still coordinates a transaction; false where it does not
	// answer.
	Open(ctx context.Context, id commit.ID) bool
	// Promise has a node promise all keys of shards that it leads up to rev, in one call.
	// It returns, by shard, the indexes of what was promised; the rest is not, or not in time.
	Promise(ctx context.Context, node uint64, rev int64, shards []uint64) (indexes map[uint64]uint64, err error)
}

// caller makes calls of the leader of d.
func (r *Router) caller(d *shard.Data) *raft.Caller[Leader] {
	c := &raft.Caller[Leader]{Replica: d.Replica(), Here: d, Timeout: r.timeout}
	if r.leaders != nil {
		c.Elsewhere = func() (Leader, bool) {
			l := r.leaders.Leader(d.Replica().ShardID())
			return l, l != nil
		}
	}
	return c
}

// atLeader calls fn with the leader of d, again while it certainly did nothing, within
// the time that a call may take.
func (r *Router) atLeader(ctx context.Context, d *shard.Data, fn func(context.Context, Leader) error) error {
	return r.caller(d).Call(ctx, fn)
}

// upTo calls fn with the leader of d and returns when this node's replica has applied
// the entry at the index that fn returns.
func (r *Router) upTo(ctx context.Context, d *shard.Data, fn func(context.Context, Leader) (uint64, error)) error {
	return r.caller(d).UpTo(ctx, fn)
}
