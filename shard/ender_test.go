package shard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// deadShards are shards of which one has no leader. Calls are given up after a while, as
// the router's are.
type deadShards struct{ dead uint64 }

const deadAttempt = 2 * time.Second

func (deadShards) Register(context.Context, int64, uint64) (uint64, error) {
	return 0, lease.ErrNotFound
}

func (r deadShards) Drop(ctx context.Context, shardID uint64, _ []lease.Ref) error {
	if shardID != r.dead {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deadAttempt)
	defer cancel()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (deadShards) Numbered(uint64, int64) {}

func (deadShards) Finish(context.Context, uint64, []commit.Finish) error { return nil }

func (deadShards) Settled(context.Context, uint64, commit.ID) (commit.Outcome, error) {
	return commit.Outcome{}, raft.ErrNotLeader
}

func (deadShards) Open(context.Context, commit.ID) bool { return false }

func (deadShards) EndsTogether() bool { return false }

func (deadShards) PreparesLess() bool { return false }

func (deadShards) End(context.Context, uint64, lease.Ref) error { return raft.ErrNotLeader }

// A shard without a leader holds up the ends of the leases that have keys there, and
// those of no others.
func TestEndsPastADeadShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		const alive, dead = 8, 9
		nd.data.Connect(deadShards{dead})
		revoke := func(id int64, holders ...uint64) {
			t.Helper()
			nd.grant(t, id, 1000)
			for _, h := range holders {
				if _, err := nd.data.Register(t.Context(), id, h); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := nd.data.Write(t.Context(), nil, KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		revoke(1, dead)
		revoke(2, alive, dead)
		time.Sleep(time.Second)
		for id := int64(3); id < 6; id++ {
			revoke(id, alive)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := nd.data.AwaitEnded(ctx, id); err != nil {
				t.Errorf("end of lease %d: %v", id, err)
			}
			cancel()
		}
		for id := range int64(3) {
			if rec, ok := nd.data.leases.Get(id); ok && !rec.Ending {
				t.Errorf("lease %d is not ending", id)
			}
		}
		if n := nd.data.leases.Len(); n != 2 {
			t.Errorf("%d leases are left, want the 2 with keys on the dead shard", n)
		}
		nd.data.Connect(deadShards{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := errors.Join(nd.data.AwaitEnded(ctx, 1), nd.data.AwaitEnded(ctx, 2)); err != nil {
			t.Errorf("ends once the shard has a leader: %v", err)
		}
	})
}

// However many leases a shard without a leader holds up, others end at once.
func TestManyEndsPastADeadShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		const alive, dead, stuck, ends = 8, 9, 3000, 50
		nd.data.Connect(deadShards{dead})
		revoke := func(id int64, holder uint64) error {
			if _, err := nd.data.Write(t.Context(), nil, KindLeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: 1000}); err != nil {
				return err
			}
			if _, err := nd.data.Register(t.Context(), id, holder); err != nil {
				return err
			}
			_, err := nd.data.Write(t.Context(), nil, KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: id})
			return err
		}
		var g errgroup.Group
		for id := range int64(stuck) {
			g.Go(func() error { return revoke(1+id, dead) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for id := range int64(ends) {
			g.Go(func() error { return revoke(1+stuck+id, alive) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * raft.LeadershipTick)
		if n := nd.data.leases.Len(); n != stuck {
			t.Errorf("%d leases are left, want the %d with keys on the dead shard", n, stuck)
		}
		nd.data.Connect(deadShards{})
		time.Sleep(deadAttempt + endPause + 2*raft.LeadershipTick)
		if n := nd.data.leases.Len(); n != 0 {
			t.Errorf("%d leases are left once the shard has a leader", n)
		}
	})
}

// Tombstones go as fast as leases end.
func TestManyTombstonesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		const commands = 20
		for i := range int64(commands) {
			refs := make([]lease.Ref, maxEndPerCommand)
			for j := range refs {
				refs[j] = lease.Ref{ID: i*maxEndPerCommand + int64(j), Incarnation: 1}
			}
			if _, err := nd.r.Propose(t.Context(), raft.Kind(kindLeaseDrop), appendRefs(refs)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(nd.data.leases.Tombstones(1 << 20)); n != commands*maxEndPerCommand {
			t.Fatalf("%d tombstones", n)
		}
		time.Sleep(2 * tombstoneTicks * raft.LeadershipTick)
		if n := len(nd.data.leases.Tombstones(1 << 20)); n != 0 {
			t.Errorf("%d tombstones are left", n)
		}
	})
}
