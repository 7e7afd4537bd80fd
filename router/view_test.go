package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// another returns a router over the same shards that has answered nobody yet, as that
// of another node is.
func (s *testCluster) another() *Router {
	return New(Config{System: s.system, Order: s.order, Shards: s.shards, Timeout: s.timeout})
}

// everywhere reads all keys as this node knows them.
var everywhere = &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Serializable: true}

// A node that knows of no revision that all shards still have asks the leaders.
func TestSerializableReadBelowTheCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		other := s.another()
		defer other.Close()
		for range 5 {
			if _, err := s.Put(t.Context(), put("a")); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.shards[2].SweepTo(t.Context(), s.Revision()); err != nil {
			t.Fatal(err)
		}
		if r, err := other.Range(t.Context(), everywhere); err != nil || r.Count != 1 || r.Kvs[0].Version != 5 {
			t.Errorf("%v, %v", r, err)
		}
	})
}

// What was shown before a restart is not forgotten with it.
func TestSerializableReadAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		wrote, err := s.Put(t.Context(), put("a"))
		if err != nil {
			t.Fatal(err)
		}
		again := s.another()
		defer again.Close()
		if r, err := again.Range(t.Context(), everywhere); err != nil || r.Count != 1 || r.Header.Revision < wrote.Header.Revision {
			t.Errorf("%v, %v", r, err)
		}
	})
}

// Nor is a revision that was shown and is no shard's: one that was handed out and not used.
func TestShownNumberAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		if _, err := s.Put(t.Context(), put("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.order.(*tally).Ask(t.Context(), 100, raft.Leading{}); err != nil {
			t.Fatal(err)
		}
		linearizable := &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("zz")}
		shown, err := s.Range(t.Context(), linearizable)
		if err != nil {
			t.Fatal(err)
		}
		again := s.another()
		defer again.Close()
		if err := again.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err := again.Range(t.Context(), everywhere); err != nil || r.Header.Revision < shown.Header.Revision {
			t.Errorf("%v, %v; %v was shown", r, err, shown.Header)
		}
	})
}

// A compaction at a revision leaves the hash of that revision, on one shard and on several.
func TestHashAcrossCompaction(t *testing.T) {
	for _, m := range []placement.Map{one, two} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestCluster(t, m, false)
			defer s.close(t)
			for range 3 {
				for _, key := range []string{"a", "z"} {
					if _, err := s.Put(t.Context(), put(key)); err != nil {
						t.Fatal(err)
					}
				}
			}
			gone, err := s.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("a")})
			if err != nil {
				t.Fatal(err)
			}
			rev := gone.Header.Revision
			if _, err := s.Put(t.Context(), put("z")); err != nil {
				t.Fatal(err)
			}
			before, err := s.HashKV(t.Context(), rev)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Compact(t.Context(), &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
				t.Fatal(err)
			}
			after, err := s.HashKV(t.Context(), rev)
			if err != nil || after.Hash != before.Hash || after.CompactRevision != rev {
				t.Errorf("%v before, %v after, %v", before, after, err)
			}
		})
	}
}

// mute is an order that does not answer.
type mute struct{ Order }

func (mute) Newest(ctx context.Context) (raft.Block, error) {
	<-ctx.Done()
	return raft.Block{}, context.Cause(ctx)
}

// A backup that could not be proved though all shards have leaders, as the oracle does not
// answer, is none: what this node holds of several shards is not of one revision.
func TestBackupWithoutTheOracle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		if _, err := s.Put(t.Context(), put("a")); err != nil {
			t.Fatal(err)
		}
		answering := s.order
		s.order = mute{answering}
		var out bytes.Buffer
		if err := s.WriteSnapshot(t.Context(), &out); !errors.Is(err, raft.ErrTimeout) {
			t.Errorf("%v, and %d bytes", err, out.Len())
		}
		s.order = answering
		if err := s.WriteSnapshot(t.Context(), &out); err != nil {
			t.Error(err)
		}
	})
}

// usersBetween changes the users, and writes then, when it is asked for the first time.
type usersBetween struct {
	Order

	state  system.State
	change func()
}

func (u *usersBetween) State() *system.State { return &u.state }

func (u *usersBetween) Newest(ctx context.Context) (raft.Block, error) {
	if change := u.change; change != nil {
		u.change = nil
		change()
	}
	return u.Order.Newest(ctx)
}

// A backup has the users of the moment that its keys are of: where they change while the keys are
// looked for, what was written under the new ones is not put beside the old ones.
func TestBackupHasTheUsersOfItsRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		users := auth.New()
		users.Roles["old"] = &auth.Role{Name: "old", Permissions: []auth.Permission{{Type: authpb.Permission_READ, Key: []byte("a"), End: []byte("b")}}}
		users.Users["u"] = &auth.User{Name: "u", Hash: []byte("hash"), Roles: []string{"old"}}
		between := &usersBetween{Order: s.order, state: *s.system.State()}
		between.state.Auth = users
		between.change = func() {
			next := auth.New()
			next.Revision++
			next.Users["v"] = &auth.User{Name: "v", NoPassword: true}
			between.state.Auth = next
			if _, err := s.Put(t.Context(), put("under-the-new-ones")); err != nil {
				t.Error(err)
			}
		}
		backed := func() (got string) {
			var out bytes.Buffer
			if err := s.WriteSnapshot(t.Context(), &out); err != nil {
				t.Fatal(err)
			}
			out.Write(make([]byte, backup.Align-out.Len()%backup.Align))
			sum := sha256.Sum256(out.Bytes())
			out.Write(sum[:])
			_, err := backup.Read(&out, int64(out.Len()), backup.Contents{
				Auth: func(a *pb.AuthStatusResponse) error { got += fmt.Sprint(a.Enabled, " ", a.AuthRevision); return nil },
				Role: func(r *authpb.Role) error {
					got += fmt.Sprintf(" role %s %s %s", r.Name, r.KeyPermission[0].Key, r.KeyPermission[0].RangeEnd)
					return nil
				},
				User: func(u *authpb.User) error {
					got += fmt.Sprintf(" user %s %s %v %t", u.Name, u.Password, u.Roles, u.GetOptions().GetNoPassword())
					return nil
				},
				Key: func(kv *mvccpb.KeyValue) error { got += " key " + string(kv.Key); return nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		s.system = between
		if got, want := backed(), "false 1 role old a b user u hash [old] false"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		s.order = between
		if got, want := backed(), "false 2 user v  [] true key under-the-new-ones"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
