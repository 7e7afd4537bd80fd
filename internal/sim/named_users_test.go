package sim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/router"
)

// change makes changes of users as root.
func (p *process) change(tb testing.TB, requests ...*pb.InternalRaftRequest) {
	tb.Helper()
	for _, r := range requests {
		r.Header = &pb.RequestHeader{Username: auth.Root}
		if err := p.router.ChangeUsers(tb.Context(), r); err != nil {
			tb.Fatalf("%v: %v", r, err)
		}
	}
}

// enableUsers makes root and u, who may read and write all below a/, and has requests
// checked. When it returns all nodes know.
func (p *process) enableUsers(tb testing.TB) {
	tb.Helper()
	p.change(tb,
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
		&pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "r"}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "u", Role: "r"}},
		&pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r", Perm: &authpb.Permission{
			PermType: authpb.Permission_READWRITE, Key: []byte("a/"), RangeEnd: []byte("a0"),
		}}},
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
	)
	for _, n := range p.node.c.nodes {
		for n.running().cluster.State().Auth.Revision < p.cluster.State().Auth.Revision {
			time.Sleep(time.Millisecond)
		}
	}
}

// as returns a context under which requests are a user's with a fresh token.
func (p *process) as(tb testing.TB, user string) context.Context {
	tb.Helper()
	users, err := p.router.Users(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return auth.With(tb.Context(), auth.Identity{User: user, Revision: users.Revision, Known: true})
}

// lag keeps the entries of a shard from a node until it is ended.
func (c *cluster) lag(shard, node uint64) (end func()) {
	return c.drop(shard, func(l link, m *raftpb.Message) bool { return l.to == node && entries(l, m) })
}

// forget keeps all entries from a node: those of data shards until learn, those of the
// system shard for good.
func (c *cluster) forget(node uint64) (learn func()) {
	var learnt atomic.Bool
	c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
		return fate{lose: l.to == node && entries(l, m) && (system || !learnt.Load())}
	})
	return func() { learnt.Store(true) }
}

// turnedAway tells whether a request was turned away for lack of rights, or because they may
// have changed.
func turnedAway(err error) bool {
	return errors.Is(err, auth.ErrPermissionDenied) || errors.Is(err, auth.ErrOldRevision) || errors.Is(err, router.ErrOutdated)
}

// A right was taken away, and that was acknowledged. A node that knows nothing of it yet must
// do nothing any more that needs the right.
func TestLostRightsOverLeasesHold(t *testing.T) {
	uses := map[string]func(ctx context.Context, p *process, id int64) error{
		"renew": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.LeaseRenew(ctx, id)
			return err
		},
		"revoke": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
			return err
		},
		"keys": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
			return err
		},
		"list": func(ctx context.Context, p *process, _ int64) error {
			_, err := p.router.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
			return err
		},
	}
	taken := map[string]*pb.InternalRaftRequest{
		"u": {AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte("a/"), RangeEnd: []byte("a0")}},
		"v": {AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: "v", Role: auth.Root}},
	}
	for name, use := range uses {
		for user, change := range taken {
			for shards, splits := range map[string][]string{"one shard": nil, "four shards": fourShards} {
				t.Run(fmt.Sprintf("%s by %s, %s", name, user, shards), func(t *testing.T) {
					bubbleOf(t, options{seed: seed(t), splits: splits, snapshotEntries: 60}, func(c *cluster) {
						t := c.tb
						one, three := c.node(1), c.node(3)
						one.change(t,
							&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "v"}},
							&pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: auth.Root}},
							&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "v", Role: auth.Root}},
						)
						one.enableUsers(t)
						one.grant(t, 7, 100)
						if _, err := one.router.Put(one.as(t, auth.Root), &pb.PutRequest{Key: []byte("a/k"), Lease: 7}); err != nil {
							t.Fatal(err)
						}
						as := three.as(t, user)
						learn := c.forget(3)
						one.change(t, proto.CloneOf(change))
						used := meanwhile(func() (struct{}, error) { return struct{}{}, use(as, three, 7) })
						time.Sleep(500 * time.Millisecond)
						learn()
						if _, err := used.wait(); !turnedAway(err) {
							t.Errorf("%s without the right: %v", name, err)
						}
					})
				})
			}
		}
	}
}

// A node that has not heard of a change of users that was acknowledged can't prove those that
// it knows.
func TestUsersAreProved(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		one, three := c.node(1), c.node(3)
		one.enableUsers(t)
		users, err := three.router.Users(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := three.router.ProveUsers(t.Context(), users); err != nil {
			t.Errorf("the newest users: %v", err)
		}
		learn := c.forget(3)
		one.change(t, &pb.InternalRaftRequest{AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: "u", Role: "r"}})
		proved := meanwhile(func() (struct{}, error) { return struct{}{}, three.router.ProveUsers(t.Context(), users) })
		time.Sleep(500 * time.Millisecond)
		learn()
		if _, err := proved.wait(); !errors.Is(err, router.ErrOutdated) {
			t.Errorf("users that have changed since: %v", err)
		}
		if now, err := three.router.Users(t.Context()); err != nil || now != users {
			c.unshown("node 3 has heard of the change (%v)", err)
		}
		// What it knows needs no leader.
		c.net.sever(around(3)...)
		time.Sleep(5 * time.Second)
		if err := three.router.ProveUsers(t.Context(), users); !errors.Is(err, router.ErrOutdated) {
			t.Errorf("users that have changed since, without a leader: %v", err)
		}
	})
}

// Where requests are not checked nothing is asked of anyone.
func TestUsersThatAreNotChecked(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		three := c.node(3)
		users, err := three.router.Users(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.net.sever(around(3)...)
		begun := time.Now()
		if err := three.router.ProveUsers(t.Context(), users); err != nil || time.Since(begun) != 0 {
			t.Errorf("nothing to prove, but after %v: %v", time.Since(begun), err)
		}
	})
}

// A key was attached to a lease, through one node, by somebody who may write it. Then another
// user, who may not, uses the lease through a node that has not applied that yet, be it that
// the home knows of the key's shard or that the key is there.
func TestForeignKeysOfALeaseAreJudgedByWhatIsThere(t *testing.T) {
	uses := map[string]func(ctx context.Context, p *process, id int64) error{
		"revoke": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
			return err
		},
		"renew": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.LeaseRenew(ctx, id)
			return err
		},
		"put": func(ctx context.Context, p *process, id int64) error {
			_, err := p.router.Put(ctx, &pb.PutRequest{Key: []byte("a/own"), Lease: id})
			return err
		},
		"transaction": func(ctx context.Context, p *process, id int64) error {
			put := &pb.PutRequest{Key: []byte("a/own"), Lease: id}
			_, err := p.router.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}})
			return err
		},
	}
	for name, use := range uses {
		for which, behind := range map[string]uint64{"home": shardC, "key": shardB} {
			t.Run(name+" behind the "+which, func(t *testing.T) {
				bubble(t, func(c *cluster) {
					t := c.tb
					one, three := c.node(1), c.node(3)
					one.enableUsers(t)
					id := c.leaseAt(shardC)
					one.grant(t, id, 100)
					u := three.as(t, "u")
					heal := c.lag(behind, 3)
					root := one.as(t, auth.Root)
					if _, err := one.router.Put(root, &pb.PutRequest{Key: []byte("b/secret"), Lease: id}); err != nil {
						t.Fatal(err)
					}
					used := meanwhile(func() (struct{}, error) { return struct{}{}, use(u, three, id) })
					time.Sleep(500 * time.Millisecond)
					heal()
					if _, err := used.wait(); !errors.Is(err, auth.ErrPermissionDenied) {
						t.Errorf("%s of a lease with a key that is not the user's: %v", name, err)
					}
					found, err := one.router.Range(root, &pb.RangeRequest{Key: []byte("b/secret")})
					if err != nil || found.Count != 1 {
						t.Errorf("the key: %v, %v", found, err)
					}
				})
			})
		}
	}
}
