package auth

import (
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Root is the name of the user, and of the role, that may do everything.
const Root = "root"

// Settings is what concerns all users.
type Settings struct {
	// Enabled is set while requests are checked.
	Enabled bool `json:"enabled"`
	// Revision counts the changes of users and roles, as etcd counts them.
	Revision uint64 `json:"revision"`
	// Epoch counts the changes that requests may have to be checked again for:
	// those while Enabled is set, and those of it.
	Epoch uint64 `json:"epoch"`
	// Logins counts the simple tokens.
	Logins uint64 `json:"logins"`
}

// User is one user.
type User struct {
	Name string `json:"name"`
	// Hash is the password's hash, empty where there is none.
	Hash []byte `json:"hash,omitempty"`
	// NoPassword is set for a user that only a certificate can identify.
	NoPassword bool `json:"no_password,omitempty"`
	// Roles are sorted.
	Roles []string `json:"roles,omitempty"`
}

// has reports whether the user has a role.
func (u *User) has(role string) bool {
	_, ok := slices.BinarySearch(u.Roles, role)
	return ok
}

// Role is one role.
type Role struct {
	Name string `json:"name"`
	// Permissions are sorted by key.
	Permissions []Permission `json:"permissions,omitempty"`
}

// Permission is a right to a range of keys.
type Permission struct {
	Type authpb.Permission_Type `json:"type"`
	Key  []byte                 `json:"key"`
	// End is the range's end as etcd writes it: empty for one key, one zero byte
	// for all keys from Key on.
	End []byte `json:"end,omitempty"`
}

// State is all users and roles at one moment. It never changes. Whoever makes one
// from records calls Index before it is used.
type State struct {
	Settings

	Users map[string]*User
	Roles map[string]*Role

	// grants are the rights of each user, the roles' together.
	// Invariant: it has an entry for each user.
	grants map[string]*grants
}

// New returns the state without users and roles.
func New() *State {
	return &State{
		Settings: Settings{Revision: 1},
		Users:    make(map[string]*User), Roles: make(map[string]*Role), grants: make(map[string]*grants),
	}
}

// Same reports whether no user, role or setting has changed between two states of one
// cluster. Logins change none.
func (s *State) Same(other *State) bool {
	return s.Revision == other.Revision && s.Epoch == other.Epoch
}

// Index works the users' rights out. It is called once all records are there.
func (s *State) Index() {
	for name := range s.Users {
		s.regrant(name)
	}
}

// regrant works the rights of one user out.
func (s *State) regrant(name string) {
	s.grants[name] = s.merge(s.Users[name])
}

// clone returns a state that may be changed record by record.
func (s *State) clone() *State {
	return &State{
		Settings: s.Settings,
		Users:    maps.Clone(s.Users), Roles: maps.Clone(s.Roles), grants: maps.Clone(s.grants),
	}
}

// root reports whether a user exists and has the root role.
func (s *State) root(user string) bool {
	u := s.Users[user]
	return u != nil && u.has(Root)
}

// UserGet tells a user's roles, to an administrator and to the user.
func (s *State) UserGet(id Identity, r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	if err := s.Admin(id); err != nil && r.GetName() != id.User {
		return nil, err
	}
	u := s.Users[r.GetName()]
	if u == nil {
		return nil, ErrUserNotFound
	}
	return &pb.AuthUserGetResponse{Roles: slices.Clone(u.Roles)}, nil
}

// RoleGet tells a role's permissions, to an administrator and to users that have
// the role.
func (s *State) RoleGet(id Identity, r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	if err := s.Admin(id); err != nil {
		if u := s.Users[id.User]; u == nil || !u.has(r.GetRole()) {
			return nil, err
		}
	}
	role := s.Roles[r.GetRole()]
	if role == nil {
		return nil, ErrRoleNotFound
	}
	resp := &pb.AuthRoleGetResponse{}
	if role.Name == Root {
		resp.Perm = append(resp.Perm, &authpb.Permission{PermType: authpb.Permission_READWRITE, RangeEnd: []byte{0}})
		return resp, nil
	}
	resp.Perm = role.Message().KeyPermission
	return resp, nil
}

// UserList lists the users, to an administrator.
func (s *State) UserList(id Identity) (*pb.AuthUserListResponse, error) {
	if err := s.Admin(id); err != nil {
		return nil, err
	}
	return &pb.AuthUserListResponse{Users: slices.Sorted(maps.Keys(s.Users))}, nil
}

// RoleList lists the roles, to an administrator.
func (s *State) RoleList(id Identity) (*pb.AuthRoleListResponse, error) {
	if err := s.Admin(id); err != nil {
		return nil, err
	}
	return &pb.AuthRoleListResponse{Roles: slices.Sorted(maps.Keys(s.Roles))}, nil
}
