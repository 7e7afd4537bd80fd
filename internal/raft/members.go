package raft

import (
	"context"
	"errors"
	"fmt"

	"github.com/lni/dragonboat/v4"
)

// Members are a shard's replicas as its log says, by replica id with the NodeHostIDs of their hosts.
type Members struct {
	// Version names this state of the members: a step that is proposed for an older one is refused.
	Version uint64
	// Voters count for majorities, NonVoting only follow.
	Voters, NonVoting map[uint64]string
	// Removed can never be members again.
	Removed map[uint64]struct{}
}

// ErrStepRefused is returned for a step of membership that was not made: the members are other ones
// by now, or no step of them is possible. Who wants it looks at the members again.
var ErrStepRefused = errors.New("raft: step of membership refused")

// Members returns the members as of now or later. It waits for the shard's leader, wherever it is.
func (r *Replica) Members(ctx context.Context) (Members, error) {
	ctx, cancel := r.stepTime(ctx)
	defer cancel()
	m, err := r.nh.SyncGetShardMembership(ctx, r.shardID)
	if err != nil {
		return Members{}, fmt.Errorf("ask for members of shard %d: %w", r.shardID, err)
	}
	return Members{Version: m.ConfigChangeID, Voters: m.Nodes, NonVoting: m.NonVotings, Removed: m.Removed}, nil
}

// Voters returns the members that vote, by replica id with the NodeHostIDs of their hosts, and the version of the
// members, by what this replica has applied; none when the host is closed.
func (r *Replica) Voters() (version uint64, voters map[uint64]string) {
	info := r.nh.GetNodeHostInfo(dragonboat.NodeHostInfoOption{SkipLogInfo: true})
	if info == nil {
		return 0, nil
	}
	for _, s := range info.ShardInfoList {
		if s.ShardID == r.shardID {
			return s.ConfigChangeIndex, s.Replicas
		}
	}
	return 0, nil
}

// votes reports whether a replica is a voter, by what this one has applied.
func (r *Replica) votes(replicaID uint64) bool {
	_, voters := r.Voters()
	_, ok := voters[replicaID]
	return ok
}

// AddNonVoting has a replica on a host follow, which counts for no majority. Like Promote and
// RemoveMember it is for the shard's leader, makes the step only if the members are still those of
// version, and returns when it has applied here. An error other than ErrStepRefused leaves open whether
// it will: the caller looks at the members again.
func (r *Replica) AddNonVoting(ctx context.Context, replicaID uint64, host string, version uint64) error {
	return r.step(ctx, func(ctx context.Context) error {
		return r.nh.SyncRequestAddNonVoting(ctx, r.shardID, replicaID, host, version)
	})
}

// Promote makes a replica that follows a voter.
func (r *Replica) Promote(ctx context.Context, replicaID uint64, host string, version uint64) error {
	return r.step(ctx, func(ctx context.Context) error {
		return r.nh.SyncRequestAddReplica(ctx, r.shardID, replicaID, host, version)
	})
}

// RemoveMember removes a replica for ever.
func (r *Replica) RemoveMember(ctx context.Context, replicaID, version uint64) error {
	return r.step(ctx, func(ctx context.Context) error {
		return r.nh.SyncRequestDeleteReplica(ctx, r.shardID, replicaID, version)
	})
}

// step makes one step of membership.
func (r *Replica) step(ctx context.Context, propose func(context.Context) error) error {
	if r.Serving() == 0 {
		return ErrNotLeader
	}
	ctx, cancel := r.stepTime(ctx)
	defer cancel()
	err := propose(ctx)
	switch {
	case errors.Is(err, dragonboat.ErrRejected), errors.Is(err, dragonboat.ErrSystemBusy), errors.Is(err, dragonboat.ErrShardNotReady):
		return fmt.Errorf("%w: shard %d: %w", ErrStepRefused, r.shardID, err)
	case err != nil:
		return fmt.Errorf("change members of shard %d: %w", r.shardID, err)
	}
	return nil
}

// stepTime bounds a question or a step of membership: a round of Raft takes no longer, if it works.
func (r *Replica) stepTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.host.attempt(), ErrTimeout)
}
