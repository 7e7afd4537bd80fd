package router

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// silent is an oracle that hands out numbers to shards and nothing else.
type silent struct{ *tally }

var errSilent = errors.New("the oracle was asked")

func (silent) Newest(context.Context) (raft.Block, error) { return raft.Block{}, errSilent }

// A read of one shard's keys is behind every write, and asks no oracle.
func TestRangeInShard(t *testing.T) {
	for name, m := range map[string]placement.Map{"one shard": one, "several": two} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestCluster(t, m, false)
				defer s.close(t)
				s.order = silent{}
				for range 3 {
					wrote, err := s.Put(t.Context(), put("a"))
					if err != nil {
						t.Fatal(err)
					}
					r, err := s.RangeInShard(t.Context(), &pb.RangeRequest{Key: []byte("a")})
					if err != nil || r.Count != 1 || r.Kvs[0].ModRevision != wrote.Header.Revision || r.Header.Revision != wrote.Header.Revision {
						t.Errorf("%v, %v, want %v", r, err, wrote.Header)
					}
				}
				wide := &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z")}
				if divided := s.Divided(wide.Key, wide.RangeEnd); divided != (len(m) > 1) {
					t.Errorf("divided: %v", divided)
				}
				if _, err := s.RangeInShard(t.Context(), wide); len(m) > 1 && !errors.Is(err, ErrSeveralShards) {
					t.Errorf("over several shards: %v", err)
				}
			})
		})
	}
}

// Who may not read keys does not by way of RangeInShard. Peek is nobody's.
func TestOwnReadsAndRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		wrote, err := s.Put(t.Context(), put("a"))
		if err != nil {
			t.Fatal(err)
		}
		users := auth.New()
		for _, change := range []*pb.InternalRaftRequest{
			{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
			{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
			{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
			{AuthEnable: &pb.AuthEnableRequest{}},
		} {
			if users, _, err = users.Apply(change); err != nil {
				t.Fatal(err)
			}
		}
		s.system = fixedSystem{system.State{Map: two, Order: system.OrderRecord{Compacted: -1}, Auth: users}}
		req := &pb.RangeRequest{Key: []byte("a")}
		for _, sender := range []struct {
			id   auth.Identity
			want error
		}{
			{auth.Identity{User: "u", Revision: users.Revision, Known: true}, auth.ErrPermissionDenied},
			{auth.Identity{}, auth.ErrUserEmpty},
			{auth.Identity{User: auth.Root, Revision: users.Revision, Known: true}, nil},
		} {
			if _, err := s.RangeInShard(auth.With(t.Context(), sender.id), req); !errors.Is(err, sender.want) {
				t.Errorf("%+v: %v, want %v", sender.id, err, sender.want)
			}
		}
		if r, err := s.Peek(t.Context(), req, wrote.Header.Revision); err != nil || r.Count != 1 || r.Header.Revision < wrote.Header.Revision {
			t.Errorf("peek: %v, %v", r, err)
		}
		if r, err := s.Peek(t.Context(), req, 1000); !errors.Is(err, raft.ErrTimeout) {
			t.Errorf("peek at a revision that is unknown: %v, %v", r, err)
		}
	})
}
