package router

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// changing is a system shard whose users change.
type changing struct{ state atomic.Pointer[system.State] }

// State returns the state of now.
func (c *changing) State() *system.State { return c.state.Load() }

// set makes the users those that changes make of the ones before.
func (c *changing) set(t *testing.T, m placement.Map, changes ...*pb.InternalRaftRequest) *auth.State {
	t.Helper()
	users := auth.New()
	if before := c.state.Load(); before != nil {
		users = before.Auth
	}
	for _, change := range changes {
		change.Header = &pb.RequestHeader{Username: auth.Root, AuthRevision: users.Revision}
		var err error
		if users, _, err = users.Apply(change); err != nil {
			t.Error(err)
		}
	}
	c.state.Store(&system.State{
		Map: m, Order: system.OrderRecord{Compacted: -1}, Cluster: system.ClusterRecord{Version: system.Version}, Auth: users,
	})
	return users
}

func granted(kind authpb.Permission_Type, key, end string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{
		Name: "r", Perm: &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)},
	}}
}

// newRights returns two shards with keys "a", "b", "y" and "z", and a user who may write from
// "a" to "c", read from "a" to "d" and "x", and read and write from "y" to "zz".
func newRights(t *testing.T) (*testCluster, *changing) {
	t.Helper()
	s := newTestCluster(t, two, false)
	for _, key := range []string{"a", "b", "x", "y", "z"} {
		if _, err := s.Put(t.Context(), put(key)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Txn(t.Context(), txnOf(put("a"), put("z"))); err != nil {
		t.Fatal(err)
	}
	c := &changing{}
	c.set(t, two,
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
		&pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "r"}},
		granted(authpb.READWRITE, "a", "c"), granted(authpb.READ, "c", "d"), granted(authpb.READ, "x", ""),
		granted(authpb.READWRITE, "y", "zz"),
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "u", Role: "r"}},
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
	)
	s.system = c
	return s, c
}

// by returns a context of a user whose token is of now.
func by(t *testing.T, c *changing, user string) context.Context {
	t.Helper()
	return auth.With(t.Context(), auth.Identity{User: user, Revision: c.State().Auth.Revision, Known: true})
}

// unchanged fails unless all keys are as they were at a revision, and nothing is held.
func unchanged(t *testing.T, s *testCluster, c *changing, rev int64) {
	t.Helper()
	time.Sleep(3 * time.Second) // what is given up is told to the participants in the background
	r, err := s.Range(by(t, c, auth.Root), getAt("a", "\x00", 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		if kv.ModRevision > rev {
			t.Errorf("%q was changed", kv.Key)
		}
	}
	if len(r.Kvs) != 5 {
		t.Errorf("%d keys are left of 5", len(r.Kvs))
	}
	for id, d := range s.shards {
		if held := d.Store().Met(nil, []keys.Span{{}}); len(held) > 0 {
			t.Errorf("shard %d: %q is held", id, held)
		}
	}
}

// A write over shards needs the rights to all that it names, on each of them; without one it is
// refused before anything is done.
func TestRightsOverShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newRights(t)
		defer s.close(t)
		user := by(t, c, "u")
		before, err := s.newestNumber(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		reads := func(key string) *pb.TxnRequest {
			return &pb.TxnRequest{Compare: []*pb.Compare{missing(key)}, Success: txnOf(put("a"), put("z")).Success}
		}
		prevOf := put("x")
		prevOf.PrevKv = true
		for name, req := range map[string]*pb.TxnRequest{
			"a put":                         txnOf(put("a"), put("x")),
			"a put in the first shard":      txnOf(put("z"), put("c")),
			"a put whose value is told":     txnOf(put("a"), prevOf),
			"a deletion of a range":         txnOf(put("a"), del("y", "zzz")),
			"a deletion over both":          txnOf(del("b", "z")),
			"a read":                        txnOf(put("a"), getAt("w", "", 0)),
			"a compare":                     reads("w"),
			"a put in the branch not taken": {Compare: []*pb.Compare{missing("a")}, Success: txnOf(put("w")).Success, Failure: txnOf(put("a"), put("z")).Success},
			"a nested put":                  txnOf(put("a"), txnOf(txnOf(put("w")))),
		} {
			if _, err := s.Txn(user, req); !errors.Is(err, auth.ErrPermissionDenied) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, req := range []*pb.DeleteRangeRequest{del("a", "zz"), del("a", "\x00"), del("b", "x")} {
			if _, err := s.DeleteRange(user, req); !errors.Is(err, auth.ErrPermissionDenied) {
				t.Errorf("%v: %v", req, err)
			}
		}
		after, err := s.newestNumber(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if after.Newest != before.Newest {
			t.Errorf("refusals took %d numbers", after.Newest-before.Newest)
		}
		unchanged(t, s, c, before.Newest)
		if _, err := s.Txn(user, txnOf(put("a"), getAt("c", "", 0), getAt("x", "", 0), put("z"), del("y", "z"))); err != nil {
			t.Errorf("what it has the rights to: %v", err)
		}
	})
}

// A right that is taken away when the keys are held, and before the transaction is decided, is
// taken away: nothing is changed, and the keys are let go.
func TestRightLostBetweenPrepareAndDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		txn *pb.TxnRequest
		// holds is how many shards hold keys of it.
		holds int
	}{
		"puts": {txnOf(put("a"), put("z")), 1}, "deletion": {txnOf(del("a", "c"), del("y", "zz")), 2},
	} {
		write := func(ctx context.Context, s *testCluster) error {
			_, err := s.Txn(ctx, tc.txn)
			return err
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newRights(t)
				defer s.close(t)
				order, ok := s.order.(*tally)
				if !ok {
					t.Fatal("another order")
				}
				before, err := s.newestNumber(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				ctx := by(t, c, "u")
				changed := false
				order.asked = func() {
					holds := 0
					for _, d := range s.shards {
						holds += len(d.Store().Met(nil, []keys.Span{{}}))
					}
					if changed || holds < tc.holds {
						return
					}
					changed = true
					c.set(t, two, &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{
						Role: "r", Key: []byte("y"), RangeEnd: []byte("zz"),
					}})
					if _, err := s.Users(t.Context()); err != nil { // which is when a change is acknowledged
						t.Error(err)
					}
				}
				if err := write(ctx, s); !errors.Is(err, ErrOutdated) {
					t.Errorf("it ended in %v", err)
				}
				if !changed {
					t.Fatal("the number of the decision was not asked for")
				}
				if err := write(by(t, c, "u"), s); !errors.Is(err, auth.ErrPermissionDenied) {
					t.Errorf("made again: %v", err)
				}
				unchanged(t, s, c, before.Newest)
			})
		})
	}
}
