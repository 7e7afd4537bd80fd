package system

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrVersion is returned for a change of members while nodes are in the cluster that do not know such changes, or have not
// said that they do.
var ErrVersion = errors.New("a node of the cluster does not know changes of members yet, or has never started: upgrade and start all nodes first")

// ChangesMembers reports whether all nodes know changes of the members.
func (s *State) ChangesMembers() bool { return s.allows(changesMembers) }

// Removes reports whether a member can be removed: all nodes know changes of the members, or it has never said what it speaks and
// all that have know them. A node that never starts would else keep the others from agreeing on a version, and so from removing it.
func (s *State) Removes(id uint64) bool {
	silent := func(n NodeRecord) bool { return n.Version == 0 }
	n, known := s.Nodes[id]
	return s.ChangesMembers() || known && silent(n) && s.lowest(silent) >= changesMembers
}

// AddMember takes a member in and returns its id, which is drawn: a member that is added again is another one. Like those of the
// other changes of members, its errors are the reasons of members.go. judged is the version of the members by which the
// caller judged that the change is safe.
func (c *Cluster) AddMember(ctx context.Context, peerURLs []string, learner bool, judged uint64) (id uint64, err error) {
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return 0, fmt.Errorf("draw member id: %w", err)
	}
	id = max(binary.BigEndian.Uint64(seed[:]), 1)
	urls := slices.Sorted(slices.Values(peerURLs))
	return id, c.changeMembers(ctx, memberCommand{Op: opAdd, ID: id, PeerURLs: urls, Learner: learner, Judged: judged})
}

// JoinMember binds the member at some peer URLs to a node's data directory, and gives it replicas, unless both has
// been done. version is the newest cluster version that the node speaks.
func (c *Cluster) JoinMember(ctx context.Context, peerURLs []string, instance string, version uint32) error {
	urls := slices.Sorted(slices.Values(peerURLs))
	if n, ok := c.State().memberAt(urls); ok && n.Instance == instance && c.State().System.replicaOn(n.ID) != 0 {
		return nil
	}
	return c.changeMembers(ctx, memberCommand{Op: opJoin, PeerURLs: urls, Instance: instance, Version: version})
}

// PromoteMember makes a learner a member that votes.
func (c *Cluster) PromoteMember(ctx context.Context, id, judged uint64) error {
	return c.changeMembers(ctx, memberCommand{Op: opPromote, ID: id, Judged: judged})
}

// UpdateMember changes where a member is reached.
func (c *Cluster) UpdateMember(ctx context.Context, id uint64, peerURLs []string) error {
	return c.changeMembers(ctx, memberCommand{Op: opUpdate, ID: id, PeerURLs: slices.Sorted(slices.Values(peerURLs))})
}

// RemoveMember begins to remove a member. It is out when State().Removed has it.
func (c *Cluster) RemoveMember(ctx context.Context, id, judged uint64) error {
	return c.changeMembers(ctx, memberCommand{Op: opRemove, ID: id, Judged: judged})
}

// MemberGone says that a member that is being removed has no replicas any more.
func (c *Cluster) MemberGone(ctx context.Context, id uint64) error {
	return c.changeMembers(ctx, memberCommand{Op: opGone, ID: id})
}

// changeMembers puts a change of the members through the system shard.
func (c *Cluster) changeMembers(ctx context.Context, p memberCommand) error {
	if state := c.State(); !state.ChangesMembers() && (p.Op != opRemove || !state.Removes(p.ID)) {
		return ErrVersion
	}
	payload, err := encode(p)
	if err != nil {
		return err
	}
	result, err := c.send(ctx, kindMembers, payload)
	if err != nil {
		return err
	}
	reason, _ := result.(string)
	for _, known := range memberReasons {
		if reason == known.Error() {
			return known
		}
	}
	if reason != "" {
		return fmt.Errorf("%w: %s", errReason, reason)
	}
	return nil
}

// errReason is returned for a reason that this version does not know.
var errReason = errors.New("the members were not changed")
