package auth

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// testHash is a hash of "p" at the lowest cost.
var testHash = func() string {
	hash, err := Hash("p", MinCost)
	if err != nil {
		panic(err)
	}
	return hash
}()

// The requests below are sent by root.

func as(user string, r *pb.InternalRaftRequest) *pb.InternalRaftRequest {
	r.Header = &pb.RequestHeader{Username: user}
	return r
}

func enable() *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}})
}

func disable() *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}})
}

func userAdd(name string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: name, HashedPassword: testHash}})
}

func userDelete(name string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: name}})
}

func changePassword(name, hash string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: name, HashedPassword: hash}})
}

func grantRole(user, role string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: user, Role: role}})
}

func revokeRole(user, role string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: user, Role: role}})
}

func roleAdd(name string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: name}})
}

func roleDelete(name string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthRoleDelete: &pb.AuthRoleDeleteRequest{Role: name}})
}

func permit(role string, t authpb.Permission_Type, key, end string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{
		Name: role, Perm: &authpb.Permission{PermType: t, Key: []byte(key), RangeEnd: []byte(end)},
	}})
}

func forbid(role, key, end string) *pb.InternalRaftRequest {
	return as(Root, &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{
		Role: role, Key: []byte(key), RangeEnd: []byte(end),
	}})
}

const (
	read  = authpb.Permission_READ
	write = authpb.Permission_WRITE
	both  = authpb.Permission_READWRITE
)

// after returns the state after requests that must all do.
func after(tb testing.TB, s *State, requests ...*pb.InternalRaftRequest) *State {
	tb.Helper()
	for _, r := range requests {
		next, _, err := s.Apply(r)
		if err != nil {
			tb.Fatalf("%v: %v", r, err)
		}
		s = next
	}
	return s
}

// enabled returns a state with the users root, u and none, of which u has the role
// r with some permissions, and with requests being checked.
func enabled(tb testing.TB, requests ...*pb.InternalRaftRequest) *State {
	tb.Helper()
	s := after(tb, New(), userAdd(Root), grantRole(Root, Root), userAdd("u"), userAdd("none"), roleAdd("r"), grantRole("u", "r"))
	return after(tb, after(tb, s, requests...), enable())
}

// who returns the identity that a fresh token of a user gives.
func (s *State) who(user string) Identity {
	return Identity{User: user, Revision: s.Revision, Known: true}
}

// Each request is applied to the state before it; want is its error, revision and
// epoch are the state's then.
func TestApply(t *testing.T) {
	s := New()
	for i, step := range []struct {
		r               *pb.InternalRaftRequest
		want            error
		revision, epoch uint64
		effect          Effect
	}{
		{disable(), nil, 1, 0, Effect{}},
		{enable(), ErrRootUserNotExist, 1, 0, Effect{}},
		{userAdd(""), ErrUserEmpty, 1, 0, Effect{}},
		{userAdd(Root), nil, 2, 0, Effect{Users: []string{Root}}},
		{userAdd(Root), ErrUserAlreadyExist, 2, 0, Effect{}},
		{enable(), ErrRootRoleNotExist, 2, 0, Effect{}},
		{grantRole("nobody", "r"), ErrUserNotFound, 2, 0, Effect{}},
		{grantRole(Root, "r"), ErrRoleNotFound, 2, 0, Effect{}},
		{grantRole(Root, Root), nil, 3, 0, Effect{Users: []string{Root}}},
		{grantRole(Root, Root), nil, 3, 0, Effect{}},
		{enable(), nil, 3, 1, Effect{}},
		{enable(), nil, 3, 1, Effect{}},
		{userDelete(Root), ErrInvalidManagement, 3, 1, Effect{}},
		{revokeRole(Root, Root), ErrInvalidManagement, 3, 1, Effect{}},
		{roleDelete(Root), ErrInvalidManagement, 3, 1, Effect{}},
		{roleAdd(""), ErrRoleEmpty, 3, 1, Effect{}},
		{roleAdd("r"), nil, 4, 2, Effect{Roles: []string{"r"}}},
		{roleAdd("r"), ErrRoleAlreadyExist, 4, 2, Effect{}},
		{as("", roleAdd("q")), ErrUserEmpty, 4, 2, Effect{}},
		{as("nobody", roleAdd("q")), ErrUserNotFound, 4, 2, Effect{}},
		{userAdd("b"), nil, 5, 3, Effect{Users: []string{"b"}}},
		{userAdd("a"), nil, 6, 4, Effect{Users: []string{"a"}}},
		{as("a", roleAdd("q")), ErrPermissionDenied, 6, 4, Effect{}},
		{revokeRole("a", "r"), ErrRoleNotGranted, 6, 4, Effect{}},
		{revokeRole("nobody", "r"), ErrUserNotFound, 6, 4, Effect{}},
		{grantRole("a", "r"), nil, 7, 5, Effect{Users: []string{"a"}}},
		{grantRole("b", "r"), nil, 8, 6, Effect{Users: []string{"b"}}},
		{as(Root, &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r"}}), ErrPermissionNotGiven, 8, 6, Effect{}},
		{permit("r", read, "", ""), ErrInvalidManagement, 8, 6, Effect{}},
		{permit("r", read, "b", "a"), ErrInvalidManagement, 8, 6, Effect{}},
		{permit("r", read, "b", "b"), ErrInvalidManagement, 8, 6, Effect{}},
		{permit("nobody", read, "b", "a"), ErrInvalidManagement, 8, 6, Effect{}},
		{permit("nobody", read, "a", ""), ErrRoleNotFound, 8, 6, Effect{}},
		{permit("r", read, "k", "\x00"), nil, 9, 7, Effect{Roles: []string{"r"}}},
		{forbid("r", "k", ""), ErrPermissionNotGranted, 9, 7, Effect{}},
		{forbid("nobody", "k", ""), ErrRoleNotFound, 9, 7, Effect{}},
		{forbid("r", "k", "\x00"), nil, 10, 8, Effect{Roles: []string{"r"}}},
		{changePassword("nobody", testHash), ErrUserNotFound, 10, 8, Effect{}},
		{changePassword("a", "!"), ErrNoPasswordUser, 10, 8, Effect{}},
		{changePassword("a", ""), nil, 11, 9, Effect{Users: []string{"a"}, Ended: "a"}},
		{roleDelete("r"), nil, 12, 10, Effect{Roles: []string{"r"}, Users: []string{"a", "b"}}},
		{roleDelete("r"), ErrRoleNotFound, 12, 10, Effect{}},
		{userDelete("b"), nil, 13, 11, Effect{Users: []string{"b"}, Ended: "b"}},
		{userDelete("b"), ErrUserNotFound, 13, 11, Effect{}},
		{disable(), nil, 14, 12, Effect{EndAll: true}},
		{as("", roleAdd("q")), nil, 15, 12, Effect{Roles: []string{"q"}}},
		{userDelete(Root), nil, 16, 12, Effect{Users: []string{Root}, Ended: Root}},
		{enable(), ErrRootUserNotExist, 16, 12, Effect{}},
		{as("", &pb.InternalRaftRequest{}), keys.ErrNewer, 16, 12, Effect{}},
	} {
		before := fmt.Sprintf("%+v %v %v", s.Settings, s.Users, s.Roles)
		next, effect, err := s.Apply(step.r)
		if !errors.Is(err, step.want) || next.Revision != step.revision || next.Epoch != step.epoch {
			t.Errorf("step %d, %v: %v at revision %d, epoch %d; want %+v", i, step.r, err, next.Revision, next.Epoch, step)
		}
		if diff := cmp.Diff(step.effect, effect); diff != "" {
			t.Errorf("step %d, %v: effect (-want +got):\n%s", i, step.r, diff)
		}
		if now := fmt.Sprintf("%+v %v %v", s.Settings, s.Users, s.Roles); now != before {
			t.Errorf("step %d, %v: the state before became %s, was %s", i, step.r, now, before)
		}
		s = next
	}
}

func TestUserWithoutPassword(t *testing.T) {
	add := userAdd("cert")
	add.AuthUserAdd.Options = &authpb.UserAddOptions{NoPassword: true}
	s := enabled(t, add)
	if u := s.Users["cert"]; !u.NoPassword || len(u.Hash) != 0 {
		t.Errorf("user %+v", u)
	}
	if _, err := s.Verify("cert", ""); !errors.Is(err, ErrNoPasswordUser) {
		t.Errorf("password of a user without: %v", err)
	}
	if _, _, err := s.Login("cert", "x"); !errors.Is(err, ErrFailed) {
		t.Errorf("login of a user without password: %v", err)
	}
	s = after(t, s, changePassword("cert", testHash))
	if u := s.Users["cert"]; !u.NoPassword || len(u.Hash) != 0 {
		t.Errorf("user %+v was given a password", u)
	}
}

func TestVerify(t *testing.T) {
	s := enabled(t)
	if rev, err := s.Verify("u", "p"); err != nil || rev != s.Revision {
		t.Errorf("right password: revision %d, %v", rev, err)
	}
	for _, wrong := range [][2]string{{"u", "q"}, {"u", ""}, {"nobody", "p"}} {
		if _, err := s.Verify(wrong[0], wrong[1]); !errors.Is(err, ErrFailed) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	s = after(t, s, changePassword("u", ""))
	if _, err := s.Verify("u", ""); !errors.Is(err, ErrFailed) {
		t.Errorf("the empty password fits an empty hash: %v", err)
	}
	if _, err := after(t, s, disable()).Verify("u", "p"); !errors.Is(err, ErrNotEnabled) {
		t.Errorf("disabled: %v", err)
	}
	if _, err := Hash(strings.Repeat("p", 73), MinCost); err == nil || err.Error() != "bcrypt: password length exceeds 72 bytes" {
		t.Errorf("73 bytes: %v", err)
	}
}

func TestLoginNumbersTokens(t *testing.T) {
	s := enabled(t)
	next, token, err := s.Login("u", "abc")
	if err != nil || token != "abc.1" || next.Logins != 1 || s.Logins != 0 || next.Revision != s.Revision || next.Epoch != s.Epoch {
		t.Errorf("token %q of %+v: %v", token, next.Settings, err)
	}
	if _, token, _ := next.Login("u", "abc"); token != "abc.2" {
		t.Errorf("second token %q", token)
	}
	if _, _, err := s.Login("nobody", "abc"); !errors.Is(err, ErrFailed) {
		t.Errorf("nobody: %v", err)
	}
	if _, _, err := New().Login("u", "abc"); !errors.Is(err, ErrNotEnabled) {
		t.Errorf("disabled: %v", err)
	}
}

func TestPermissionsKeepEtcdsOrder(t *testing.T) {
	s := enabled(t, permit("r", read, "b", ""), permit("r", read, "a", "c"), permit("r", write, "a", "b"),
		// The first of a key is replaced, any other stays beside the new one.
		permit("r", both, "a", "c"), permit("r", both, "a", "b"))
	got, err := s.RoleGet(s.who(Root), &pb.AuthRoleGetRequest{Role: "r"})
	if err != nil {
		t.Fatal(err)
	}
	perm := func(p authpb.Permission_Type, key, end string) *authpb.Permission {
		return &authpb.Permission{PermType: p, Key: []byte(key), RangeEnd: []byte(end)}
	}
	want := &pb.AuthRoleGetResponse{Perm: []*authpb.Permission{
		perm(both, "a", "c"), perm(write, "a", "b"), perm(both, "a", "b"), perm(read, "b", ""),
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhoMayAskWhat(t *testing.T) {
	s := enabled(t, userAdd("v"), roleAdd(Root), roleAdd("q"))
	users := func(id Identity) error { _, err := s.UserList(id); return err }
	roles := func(id Identity) error { _, err := s.RoleList(id); return err }
	user := func(name string) func(Identity) error {
		return func(id Identity) error { _, err := s.UserGet(id, &pb.AuthUserGetRequest{Name: name}); return err }
	}
	role := func(name string) func(Identity) error {
		return func(id Identity) error { _, err := s.RoleGet(id, &pb.AuthRoleGetRequest{Role: name}); return err }
	}
	nobody, stranger := Identity{}, s.who("stranger")
	for _, tc := range []struct {
		name string
		ask  func(Identity) error
		id   Identity
		want error
	}{
		{"users by root", users, s.who(Root), nil},
		{"users by u", users, s.who("u"), ErrPermissionDenied},
		{"users by nobody", users, nobody, ErrUserEmpty},
		{"users by a stranger", users, stranger, ErrUserNotFound},
		{"users by the server", users, Server, nil},
		{"roles by root", roles, s.who(Root), nil},
		{"roles by u", roles, s.who("u"), ErrPermissionDenied},
		{"u by u", user("u"), s.who("u"), nil},
		{"u by v", user("u"), s.who("v"), ErrPermissionDenied},
		{"u by nobody", user("u"), nobody, ErrUserEmpty},
		{"nameless by nobody", user(""), nobody, ErrUserNotFound},
		{"stranger by stranger", user("stranger"), stranger, ErrUserNotFound},
		{"stranger by root", user("stranger"), s.who(Root), ErrUserNotFound},
		{"r by u", role("r"), s.who("u"), nil},
		{"r by v", role("r"), s.who("v"), ErrPermissionDenied},
		{"r by nobody", role("r"), nobody, ErrUserEmpty},
		{"missing by root", role("x"), s.who(Root), ErrRoleNotFound},
		{"missing by u", role("x"), s.who("u"), ErrPermissionDenied},
		{"root by root", role(Root), s.who(Root), nil},
	} {
		if err := tc.ask(tc.id); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	list, err := s.UserList(s.who(Root))
	if err != nil || strings.Join(list.Users, " ") != "none root u v" {
		t.Errorf("users %v, %v", list, err)
	}
	all, err := s.RoleList(s.who(Root))
	if err != nil || strings.Join(all.Roles, " ") != "q r root" {
		t.Errorf("roles %v, %v", all, err)
	}
	everything, err := s.RoleGet(s.who(Root), &pb.AuthRoleGetRequest{Role: Root})
	if err != nil || len(everything.Perm) != 1 || everything.Perm[0].PermType != both || len(everything.Perm[0].Key) != 0 || string(everything.Perm[0].RangeEnd) != "\x00" {
		t.Errorf("role root has %v, %v", everything, err)
	}
}

// covered is the right to a range by its definition, over all keys of a small
// alphabet up to a length.
func covered(permissions []Permission, kind authpb.Permission_Type, key, end []byte, universe [][]byte) bool {
	span := keys.FromRange(key, end)
	for _, k := range universe {
		if !span.Contains(k) {
			continue
		}
		found := false
		for _, p := range permissions {
			fits := p.Type == kind || p.Type == both
			found = found || fits && keys.FromRange(p.Key, p.End).Contains(k)
		}
		if !found {
			return false
		}
	}
	return true
}

// Rights to ranges agree with asking for every key. The universe holds keys one
// byte longer than any bound, so that between two bounds there is always one.
func TestRangeRightsModel(t *testing.T) {
	var universe [][]byte
	for next := [][]byte{nil}; len(universe) < 4+16+64+256; {
		var longer [][]byte
		for _, prefix := range next {
			for c := range byte(4) {
				longer = append(longer, append(prefix[:len(prefix):len(prefix)], c))
			}
		}
		universe, next = append(universe, longer...), longer
	}
	base := enabled(t)
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.SliceOfN(rapid.ByteRange(0, 2), 1, 3)
		end := rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{0}), bound)
		s := base
		for range rapid.IntRange(0, 5).Draw(t, "permissions") {
			r := permit("r", authpb.Permission_Type(rapid.IntRange(0, 2).Draw(t, "type")), string(bound.Draw(t, "key")), string(end.Draw(t, "end")))
			if next, _, err := s.Apply(r); err == nil {
				s = next
			} else if !errors.Is(err, ErrInvalidManagement) {
				t.Fatal(err)
			}
		}
		permissions := s.Roles["r"].Permissions
		for range 10 {
			key, end := bound.Draw(t, "asked key"), end.Draw(t, "asked end")
			if span := keys.FromRange(key, end); span.Empty() {
				continue // etcd's answers to these are an accident of its tree, which is the same here
			}
			for _, right := range []struct {
				kind authpb.Permission_Type
				ask  func(Identity, []byte, []byte) error
			}{{read, s.Read}, {write, s.Write}} {
				want := covered(permissions, right.kind, key, end, universe)
				if err := right.ask(s.who("u"), key, end); (err == nil) != want {
					t.Fatalf("%s of [%q, %q) with %+v: %v", right.kind, key, end, permissions, err)
				}
			}
			writable, all := s.Writable(s.who("u"))
			if want := covered(permissions, write, key, nil, universe); all || writable.Contains(key) != want {
				t.Fatalf("%q in %v of %+v: %v", key, writable, permissions, !want)
			}
		}
	})
}
