package system

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrVersion is returned for a change of members while nodes that do not know such changes are in the
// cluster.
var ErrVersion = errors.New("a node of the cluster does not know changes of members yet: upgrade all nodes first")

// ChangesMembers reports whether all nodes know changes of the members.
func (s *State) ChangesMembers() bool { return s.allows(changesMembers) }

// AddMember takes a member in and returns its id. Like those of the other changes of members, its errors are
// the reasons of members.go. judged is the version of the members by which the caller judged that the
// change is safe.
func (c *Cluster) AddMember(ctx context.Context, peerURLs []string, learner bool, at time.Time, judged uint64) (id uint64, err error) {
	urls := slices.Sorted(slices.Values(peerURLs))
	id = c.newMemberID(urls, at)
	return id, c.changeMembers(ctx, memberCommand{Op: opAdd, ID: id, PeerURLs: urls, Learner: learner, Judged: judged})
}

// newMemberID returns the id of a member that is added now: like etcd's it follows from its peer URLs, the cluster and
// the time, so that a member that is added again is another one.
func (c *Cluster) newMemberID(urls []string, at time.Time) uint64 {
	b := binary.BigEndian.AppendUint64([]byte("member added\x00"+strings.Join(urls, ",")+"\x00"), c.ClusterID())
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(b, uint64(at.UnixNano()))) //nolint:gosec // a hash
	return max(binary.BigEndian.Uint64(sum[:]), 1)
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
	if !c.State().ChangesMembers() {
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
