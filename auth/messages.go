package auth

import (
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Messages returns whether users are checked, and roles and users by name, as etcd keeps them.
func (s *State) Messages() (settings *pb.AuthStatusResponse, roles []*authpb.Role, users []*authpb.User) {
	for _, name := range slices.Sorted(maps.Keys(s.Roles)) {
		roles = append(roles, s.Roles[name].Message())
	}
	for _, name := range slices.Sorted(maps.Keys(s.Users)) {
		users = append(users, s.Users[name].Message())
	}
	return &pb.AuthStatusResponse{Enabled: s.Enabled, AuthRevision: s.Revision}, roles, users
}

// Message returns the user as etcd keeps it.
func (u *User) Message() *authpb.User {
	m := &authpb.User{Name: []byte(u.Name), Password: u.Hash, Roles: slices.Clone(u.Roles)}
	if u.NoPassword {
		m.Options = &authpb.UserAddOptions{NoPassword: true}
	}
	return m
}

// Message returns the role as etcd keeps it.
func (r *Role) Message() *authpb.Role {
	m := &authpb.Role{Name: []byte(r.Name)}
	for _, p := range r.Permissions {
		m.KeyPermission = append(m.KeyPermission, &authpb.Permission{PermType: p.Type, Key: p.Key, RangeEnd: p.End})
	}
	return m
}

// UserOf returns the user that etcd keeps as m.
func UserOf(m *authpb.User) *User {
	roles := slices.Clone(m.Roles)
	slices.Sort(roles)
	return &User{Name: string(m.Name), Hash: m.Password, NoPassword: m.GetOptions().GetNoPassword(), Roles: roles}
}

// RoleOf returns the role that etcd keeps as m.
func RoleOf(m *authpb.Role) *Role {
	r := &Role{Name: string(m.Name)}
	for _, p := range m.KeyPermission {
		r.Permissions = append(r.Permissions, Permission{Type: p.PermType, Key: p.Key, End: p.RangeEnd})
	}
	return r
}
