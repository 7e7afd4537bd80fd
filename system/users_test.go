package system

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// heard writes down what sessions hear.
type heard struct{ words []string }

func (h *heard) Begin(token, user string) { h.words = append(h.words, "begin "+token+" "+user) }
func (h *heard) End(user string)          { h.words = append(h.words, "end "+user) }
func (h *heard) EndAll()                  { h.words = append(h.words, "end all") }

// send runs one command in a batch of its own.
func (s *system) send(k kind, payload []byte) (result any, rejected error) {
	s.t.Helper()
	b := s.db.NewBatch()
	r := s.m.Apply(b)
	result, rejected, failed := r.Command(raft.Command{Kind: raft.Kind(k), Payload: payload}, true)
	if failed != nil {
		s.t.Fatal(failed)
	}
	if err := errors.Join(r.Finish(), b.Commit(pebble.NoSync)); err != nil {
		s.t.Fatal(err)
	}
	r.Publish()
	return result, rejected
}

// changeUsers sends a change as root.
func (s *system) changeUsers(r *pb.InternalRaftRequest) error {
	s.t.Helper()
	r.Header = &pb.RequestHeader{Username: auth.Root}
	payload, err := proto.Marshal(r)
	if err != nil {
		s.t.Fatal(err)
	}
	_, rejected := s.send(kindUsers, payload)
	return rejected
}

func (s *system) login(user, prefix string) (string, error) {
	s.t.Helper()
	payload, err := json.Marshal(login{user, prefix})
	if err != nil {
		s.t.Fatal(err)
	}
	result, rejected := s.send(kindLogin, payload)
	token, _ := result.(string)
	return token, rejected
}

// mustChange sends changes that must do, and checks that each is in Pebble.
func (s *system) mustChange(requests ...*pb.InternalRaftRequest) {
	s.t.Helper()
	for _, r := range requests {
		if err := s.changeUsers(r); err != nil {
			s.t.Fatalf("%v: %v", r, err)
		}
		s.reloaded()
	}
}

func TestUsersAreRecorded(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, cluster(10))
	if rev := s.m.State().Auth.Revision; rev != 1 {
		t.Errorf("revision %d of a system without users", rev)
	}
	s.mustChange(
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "root"}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u", Options: &authpb.UserAddOptions{NoPassword: true}}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "v"}},
		&pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "r"}},
		&pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{
			Name: "r", Perm: &authpb.Permission{PermType: authpb.Permission_WRITE, Key: []byte("\xff\x00"), RangeEnd: []byte{0}},
		}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "v", Role: "r"}},
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
		&pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "u"}},
	)
	got := s.m.State().Auth
	if !got.Enabled || got.Revision != 9 || len(got.Users) != 2 || len(got.Roles) != 1 {
		t.Errorf("%+v, users %v, roles %v", got.Settings, got.Users, got.Roles)
	}
	// What was read back grants what was granted.
	v := auth.Identity{User: "v", Revision: got.Revision, Known: true}
	if err := got.Write(v, []byte("\xff\x00\x00"), nil); err != nil {
		t.Errorf("right to a range: %v", err)
	}
	s.mustChange(&pb.InternalRaftRequest{AuthRoleDelete: &pb.AuthRoleDeleteRequest{Role: "r"}})
	if got := s.m.State().Auth; len(got.Roles) != 0 || len(got.Users["v"].Roles) != 0 {
		t.Errorf("roles %v, v has %v", got.Roles, got.Users["v"].Roles)
	}
}

func TestRejectedChangeOfUsers(t *testing.T) {
	s := newSystem(t)
	before := s.m.State()
	if err := s.changeUsers(&pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "u"}}); !errors.Is(err, auth.ErrUserNotFound) {
		t.Errorf("deleting nobody: %v", err)
	}
	if _, err := s.login("u", "x"); !errors.Is(err, auth.ErrNotEnabled) {
		t.Errorf("login: %v", err)
	}
	if s.m.State() != before {
		t.Error("a rejected change made another state")
	}
}

// Sessions hear of tokens in the log's order, and of nothing that did not happen.
func TestSessionsHearOfTokens(t *testing.T) {
	s := newSystem(t)
	h := &heard{}
	s.m.follow(h)
	s.mustChange(
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "root"}},
		&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u"}},
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
	)
	if token, err := s.login("u", "abc"); err != nil || token != "abc.1" {
		t.Errorf("first token %q, %v", token, err)
	}
	s.reloaded()
	if _, err := s.login("nobody", "abc"); !errors.Is(err, auth.ErrFailed) {
		t.Errorf("login of nobody: %v", err)
	}
	s.mustChange(&pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "u"}})
	if token, err := s.login("u", "abc"); err != nil || token != "abc.2" {
		t.Errorf("second token %q, %v", token, err)
	}
	s.mustChange(
		&pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "u"}},
		&pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}},
	)
	// What ends is told before the state is shown and behind it.
	want := []string{"begin abc.1 u", "end u", "end u", "begin abc.2 u", "end u", "end u", "end all", "end all"}
	if diff := cmp.Diff(want, h.words); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

// doorkeeper is sessions that watch which state is shown when tokens end.
type doorkeeper struct {
	auth.Sessions

	m *Machine
	// ended are the revisions of the users that were shown.
	ended []uint64
}

func (d *doorkeeper) End(user string) {
	d.ended = append(d.ended, d.m.State().Auth.Revision)
	d.Sessions.End(user)
}

func (d *doorkeeper) EndAll() {
	d.ended = append(d.ended, d.m.State().Auth.Revision)
	d.Sessions.EndAll()
}

// Whoever sees that a password was changed finds the tokens that it voids ended, be it
// that the node heard of the change from the log or got the state as a snapshot.
func TestTokensEndBeforeTheChangeIsSeen(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		s := newSystem(t)
		s.apply(kindBootstrap, cluster(10))
		s.mustChange(
			&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "root"}},
			&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}},
			&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u", HashedPassword: "aGFzaA=="}},
			&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
		)
		tokens := auth.NewSimple(0)
		d := &doorkeeper{Sessions: tokens, m: s.m}
		s.m.follow(d)
		token, err := s.login("u", "abc")
		if err != nil {
			t.Fatal(err)
		}
		before := s.m.State().Auth.Revision
		if _, ok := tokens.Identify(token, before); !ok {
			t.Fatal("the token is not known")
		}
		change := &pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "u", HashedPassword: "b3RoZXI="}}
		if snapshot {
			other, err := Open(s.db, s.m.prefix)
			if err != nil {
				t.Fatal(err)
			}
			there := &system{t: t, db: s.db, m: other}
			there.mustChange(change)
			s.m.BeginReload()
			if err := s.m.Reload(); err != nil {
				t.Fatal(err)
			}
		} else {
			s.mustChange(change)
		}
		now := s.m.State().Auth.Revision
		if now == before {
			t.Fatal("the change is not there")
		}
		if id, ok := tokens.Identify(token, now); ok {
			t.Errorf("snapshot %t: after the change the token gives %+v", snapshot, id)
		}
		if len(d.ended) == 0 || d.ended[0] != before {
			t.Errorf("snapshot %t: tokens ended when revisions %d were shown, want %d first", snapshot, d.ended, before)
		}
	}
}

// A command that was damaged stops the replica.
func TestMalformedChangeOfUsers(t *testing.T) {
	s := newSystem(t)
	for _, k := range []kind{kindUsers, kindLogin} {
		_, _, failed := s.m.Apply(s.db.NewBatch()).Command(raft.Command{Kind: raft.Kind(k), Payload: []byte("{")}, true)
		if failed == nil || !strings.Contains(failed.Error(), "decode") {
			t.Errorf("kind %d: %v", k, failed)
		}
	}
}
