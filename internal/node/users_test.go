package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
)

// change makes changes of users as root.
func (c *crashable) change(requests ...*pb.InternalRaftRequest) {
	c.t.Helper()
	for _, r := range requests {
		r.Header = &pb.RequestHeader{Username: auth.Root}
		if err := c.node.router.ChangeUsers(c.t.Context(), r); err != nil {
			c.t.Fatalf("%v: %v", r, err)
		}
	}
}

// enableUsers makes root and u, who has the role r, and has requests checked.
func (c *crashable) enableUsers() {
	c.t.Helper()
	c.change(
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
		&pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "r"}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "u", Role: "r"}},
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
	)
}

// as returns a context under which requests are a user's with a fresh token.
func (c *crashable) as(user string) context.Context {
	users, err := c.node.router.Users(c.t.Context())
	if err != nil {
		c.t.Error(err)
		return c.t.Context()
	}
	return auth.With(c.t.Context(), auth.Identity{User: user, Revision: users.Revision, Known: true})
}

func permission(key, end string) (grant, revoke *pb.InternalRaftRequest) {
	p := &authpb.Permission{PermType: authpb.Permission_READWRITE, Key: []byte(key), RangeEnd: []byte(end)}
	return &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r", Perm: p}},
		&pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: p.Key, RangeEnd: p.RangeEnd}}
}

// refused tells whether a request was turned away for lack of rights.
func refused(err error) bool {
	return errors.Is(err, auth.ErrPermissionDenied) || errors.Is(err, auth.ErrOldRevision) || errors.Is(err, router.ErrOutdated)
}

// Once a right has been taken away no write passes that needs it, however long ago
// it was checked; and no read tells of what came later.
func TestRevokedRightsHold(t *testing.T) {
	c := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem())}
	defer c.stop()
	c.enableUsers()
	grant, revoke := permission("u/", "u0")
	root := auth.With(t.Context(), auth.Server)
	var passed, turned atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range 4 {
		key := fmt.Appendf(nil, "u/%d", i)
		wg.Go(func() {
			for n := 0; !done.Load(); n++ {
				switch err := c.writeAs("u", key, n); {
				case err == nil:
					passed.Add(1)
				case refused(err):
					turned.Add(1)
				default:
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	for range 40 {
		before := passed.Load()
		c.change(grant)
		for passed.Load() == before && !t.Failed() {
			if err := c.writeAs("u", []byte("u/main"), 0); err != nil && !refused(err) {
				t.Fatal(err)
			} else if err == nil {
				passed.Add(1)
			}
		}
		c.change(revoke)
		// From here on every revision is root's.
		resp, err := c.node.router.Range(root, &pb.RangeRequest{Key: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(10) {
			put, err := c.node.router.Put(root, &pb.PutRequest{Key: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := put.Header.Revision, resp.Header.Revision+n+1; got != want {
				t.Fatalf("revision %d, %d expected: another write passed after its right was taken away", got, want)
			}
		}
	}
	done.Store(true)
	wg.Wait()
	t.Logf("%d writes passed, %d were turned away", passed.Load(), turned.Load())
}

// writeAs writes in one of several ways.
func (c *crashable) writeAs(user string, key []byte, n int) error {
	ctx := c.as(user)
	put := &pb.PutRequest{Key: key}
	var err error
	switch n % 3 {
	case 0:
		_, err = c.node.router.Put(ctx, put)
	case 1:
		_, err = c.node.router.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}})
	default:
		_, err = c.node.router.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
	}
	return err
}

// A request that was checked before a change, and comes to its shard after it, is
// turned away, as is one that nobody checked.
func TestCheckedBeforeAChange(t *testing.T) {
	c := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem())}
	defer c.stop()
	grant, revoke := permission("k", "")
	c.enableUsers()
	c.change(grant)
	u := c.as("u")
	put := &pb.PutRequest{Key: []byte("k")}
	if _, err := c.node.router.Put(u, put); err != nil {
		t.Fatal(err)
	}
	users, err := c.node.router.Users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.change(revoke)
	for _, d := range c.node.shards {
		guard := &shard.Guard{Epoch: users.Epoch}
		if _, err := d.Write(t.Context(), guard, shard.KindPut, put); !errors.Is(err, shard.ErrOutdated) {
			t.Errorf("a write that was checked before: %v", err)
		}
		if _, err := d.Write(t.Context(), nil, shard.KindPut, put); !errors.Is(err, shard.ErrOutdated) {
			t.Errorf("a write that was not checked: %v", err)
		}
	}
	if _, err := c.node.router.Put(u, put); !errors.Is(err, auth.ErrOldRevision) {
		t.Errorf("a write with an old token: %v", err)
	}
	if _, err := c.node.router.Put(c.as("u"), put); !errors.Is(err, auth.ErrPermissionDenied) {
		t.Errorf("a write without the right: %v", err)
	}
	if _, err := c.node.router.Put(t.Context(), put); !errors.Is(err, auth.ErrUserEmpty) {
		t.Errorf("a write of nobody: %v", err)
	}
	c.change(&pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}})
	if _, err := c.node.router.Put(t.Context(), put); err != nil {
		t.Errorf("a write while nothing is checked: %v", err)
	}
}

// Users, roles and the fence outlive a power cut. Tokens do not.
func TestUsersSurvivePowerCuts(t *testing.T) {
	c := &crashable{t: t, rnd: rand.New(rand.NewPCG(1, 1)), state: vfs.NewCrashableMem(), raft: raftvfs.NewStrictMem()}
	c.start()
	c.enableUsers()
	grant, _ := permission("k", "")
	c.change(grant)
	token, err := c.node.router.Login(t.Context(), "u", "abc")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.node.tokens.Identify(token, 1); !ok {
		t.Error("the token is not known")
	}
	want, err := c.node.router.ConfirmUsers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.crash()
	c.start()
	got, err := c.node.router.ConfirmUsers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Settings != want.Settings || len(got.Users) != len(want.Users) || len(got.Roles) != len(want.Roles) {
		t.Errorf("%+v after a power cut, %+v before", got.Settings, want.Settings)
	}
	if id, ok := c.node.tokens.Identify(token, 1); ok {
		t.Errorf("the token of before gives %+v", id)
	}
	put := &pb.PutRequest{Key: []byte("k")}
	if _, err := c.node.router.Put(c.as("u"), put); err != nil {
		t.Errorf("a write with the right: %v", err)
	}
	if _, err := c.node.router.Put(t.Context(), put); !errors.Is(err, auth.ErrUserEmpty) {
		t.Errorf("a write of nobody: %v", err)
	}
	c.stop()
}
