package auth

import (
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
)

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
