package auth

import (
	"bytes"
	"encoding/base64"
	"slices"
	"sort"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Effect is what a change did beside the settings.
type Effect struct {
	// Users and Roles name the records that were changed or removed.
	Users, Roles []string
	// Ended names a user whose tokens are void from now on; EndAll is set where all
	// are.
	Ended  string
	EndAll bool
}

// Apply makes the next state by one of etcd's requests. r's header says who sends
// it, its hashed passwords are all that is looked at. The state itself comes back
// where there is nothing to change. An error changes nothing.
func (s *State) Apply(r *pb.InternalRaftRequest) (*State, Effect, error) {
	if err := s.Admin(Identity{User: r.GetHeader().GetUsername()}); err != nil {
		return s, Effect{}, err
	}
	c := &change{now: s}
	err := c.apply(r)
	if err != nil || c.next == nil {
		return s, Effect{}, err
	}
	if s.Enabled || c.next.Enabled {
		c.next.Epoch++
	}
	return c.next, c.effect, nil
}

// Login numbers a simple token for a user whose password was right, and returns the
// next state with the token. Nothing else changes.
func (s *State) Login(user, prefix string) (*State, string, error) {
	if !s.Enabled {
		return s, "", ErrNotEnabled
	}
	if u := s.Users[user]; u == nil || u.NoPassword {
		return s, "", ErrFailed
	}
	next := *s
	next.Logins++
	return &next, prefix + "." + strconv.FormatUint(next.Logins, 10), nil
}

// change is a change in the making.
type change struct {
	now *State
	// next is nil until something is changed.
	next   *State
	effect Effect
}

// begin starts to change the state, which counts.
func (c *change) begin() *State {
	c.next = c.now.clone()
	c.next.Revision++
	return c.next
}

// putUser replaces a user.
func (c *change) putUser(u *User) {
	c.next.Users[u.Name] = u
	c.next.regrant(u.Name)
	c.effect.Users = append(c.effect.Users, u.Name)
}

// putRole replaces a role and works out again the rights of those that have it.
func (c *change) putRole(role *Role) {
	c.next.Roles[role.Name] = role
	c.effect.Roles = append(c.effect.Roles, role.Name)
	for name, u := range c.next.Users {
		if u.has(role.Name) {
			c.next.regrant(name)
		}
	}
}

func (c *change) apply(r *pb.InternalRaftRequest) error {
	switch {
	case r.GetAuthEnable() != nil:
		return c.enable()
	case r.GetAuthDisable() != nil:
		return c.disable()
	case r.GetAuthUserAdd() != nil:
		return c.userAdd(r.GetAuthUserAdd())
	case r.GetAuthUserDelete() != nil:
		return c.userDelete(r.GetAuthUserDelete().GetName())
	case r.GetAuthUserChangePassword() != nil:
		return c.userChangePassword(r.GetAuthUserChangePassword())
	case r.GetAuthUserGrantRole() != nil:
		return c.userGrantRole(r.GetAuthUserGrantRole())
	case r.GetAuthUserRevokeRole() != nil:
		return c.userRevokeRole(r.GetAuthUserRevokeRole())
	case r.GetAuthRoleAdd() != nil:
		return c.roleAdd(r.GetAuthRoleAdd().GetName())
	case r.GetAuthRoleDelete() != nil:
		return c.roleDelete(r.GetAuthRoleDelete().GetRole())
	case r.GetAuthRoleGrantPermission() != nil:
		return c.roleGrantPermission(r.GetAuthRoleGrantPermission())
	case r.GetAuthRoleRevokePermission() != nil:
		return c.roleRevokePermission(r.GetAuthRoleRevokePermission())
	default:
		return keys.ErrNewer
	}
}

// enable does not count as a change of users, but a request from before it was not
// checked.
func (c *change) enable() error {
	if c.now.Enabled {
		return nil
	}
	if c.now.Users[Root] == nil {
		return ErrRootUserNotExist
	}
	if !c.now.root(Root) {
		return ErrRootRoleNotExist
	}
	c.next = c.now.clone()
	c.next.Enabled = true
	return nil
}

func (c *change) disable() error {
	if !c.now.Enabled {
		return nil
	}
	c.begin().Enabled = false
	c.effect.EndAll = true
	return nil
}

func (c *change) userAdd(r *pb.AuthUserAddRequest) error {
	if r.GetName() == "" {
		return ErrUserEmpty
	}
	if c.now.Users[r.GetName()] != nil {
		return ErrUserAlreadyExist
	}
	u := &User{Name: r.GetName(), NoPassword: r.GetOptions().GetNoPassword()}
	if err := u.setHash(r.GetHashedPassword()); err != nil {
		return err
	}
	c.begin()
	c.putUser(u)
	return nil
}

// setHash takes over a hash in its text form. A user without a password has none.
func (u *User) setHash(encoded string) error {
	u.Hash = nil
	if u.NoPassword {
		return nil
	}
	hash, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return ErrNoPasswordUser
	}
	u.Hash = hash
	return nil
}

func (c *change) userDelete(name string) error {
	if c.now.Enabled && name == Root {
		return ErrInvalidManagement
	}
	if c.now.Users[name] == nil {
		return ErrUserNotFound
	}
	next := c.begin()
	delete(next.Users, name)
	delete(next.grants, name)
	c.effect.Users = append(c.effect.Users, name)
	c.effect.Ended = name
	return nil
}

func (c *change) userChangePassword(r *pb.AuthUserChangePasswordRequest) error {
	old := c.now.Users[r.GetName()]
	if old == nil {
		return ErrUserNotFound
	}
	u := *old
	if err := u.setHash(r.GetHashedPassword()); err != nil {
		return err
	}
	c.begin()
	c.putUser(&u)
	c.effect.Ended = u.Name
	return nil
}

// userGrantRole lets a user have the root role also where there is no role of that
// name. A role that the user has already is no change.
func (c *change) userGrantRole(r *pb.AuthUserGrantRoleRequest) error {
	old := c.now.Users[r.GetUser()]
	if old == nil {
		return ErrUserNotFound
	}
	if r.GetRole() != Root && c.now.Roles[r.GetRole()] == nil {
		return ErrRoleNotFound
	}
	at, found := slices.BinarySearch(old.Roles, r.GetRole())
	if found {
		return nil
	}
	u := *old
	u.Roles = slices.Insert(slices.Clone(old.Roles), at, r.GetRole())
	c.begin()
	c.putUser(&u)
	return nil
}

func (c *change) userRevokeRole(r *pb.AuthUserRevokeRoleRequest) error {
	if c.now.Enabled && r.GetName() == Root && r.GetRole() == Root {
		return ErrInvalidManagement
	}
	old := c.now.Users[r.GetName()]
	if old == nil {
		return ErrUserNotFound
	}
	if !old.has(r.GetRole()) {
		return ErrRoleNotGranted
	}
	c.begin()
	c.putUser(old.without(r.GetRole()))
	return nil
}

// without returns the user without a role.
func (u *User) without(role string) *User {
	less := *u
	less.Roles = slices.DeleteFunc(slices.Clone(u.Roles), func(r string) bool { return r == role })
	return &less
}

func (c *change) roleAdd(name string) error {
	if name == "" {
		return ErrRoleEmpty
	}
	if c.now.Roles[name] != nil {
		return ErrRoleAlreadyExist
	}
	c.begin()
	c.putRole(&Role{Name: name})
	return nil
}

func (c *change) roleDelete(name string) error {
	if c.now.Enabled && name == Root {
		return ErrInvalidManagement
	}
	if c.now.Roles[name] == nil {
		return ErrRoleNotFound
	}
	next := c.begin()
	delete(next.Roles, name)
	c.effect.Roles = append(c.effect.Roles, name)
	for user, u := range c.now.Users {
		if u.has(name) {
			c.effect.Users = append(c.effect.Users, user)
		}
	}
	users := c.effect.Users
	c.effect.Users = nil
	slices.Sort(users)
	for _, user := range users {
		c.putUser(c.now.Users[user].without(name))
	}
	return nil
}

// byKey sorts permissions by key alone, in etcd's way: the order of those with the
// same key is seen by clients.
type byKey []Permission

// Len returns the number of permissions.
func (p byKey) Len() int { return len(p) }

// Less compares two keys.
func (p byKey) Less(i, j int) bool { return bytes.Compare(p[i].Key, p[j].Key) < 0 }

// Swap exchanges two permissions.
func (p byKey) Swap(i, j int) { p[i], p[j] = p[j], p[i] }

// roleGrantPermission replaces the first permission of the key if it is for the
// same range; otherwise the permission is a further one.
func (c *change) roleGrantPermission(r *pb.AuthRoleGrantPermissionRequest) error {
	if r.GetPerm() == nil {
		return ErrPermissionNotGiven
	}
	p := Permission{Type: r.GetPerm().GetPermType(), Key: r.GetPerm().GetKey(), End: r.GetPerm().GetRangeEnd()}
	if !validRange(p.Key, p.End) {
		return ErrInvalidManagement
	}
	old := c.now.Roles[r.GetName()]
	if old == nil {
		return ErrRoleNotFound
	}
	role := &Role{Name: old.Name, Permissions: slices.Clone(old.Permissions)}
	at := sort.Search(len(role.Permissions), func(i int) bool { return bytes.Compare(role.Permissions[i].Key, p.Key) >= 0 })
	if at < len(role.Permissions) && role.Permissions[at].over(p.Key, p.End) {
		role.Permissions[at].Type = p.Type
	} else {
		role.Permissions = append(role.Permissions, p)
		sort.Sort(byKey(role.Permissions))
	}
	c.begin()
	c.putRole(role)
	return nil
}

// over reports whether the permission is for this very range.
func (p *Permission) over(key, end []byte) bool {
	return bytes.Equal(p.Key, key) && bytes.Equal(p.End, end)
}

func (c *change) roleRevokePermission(r *pb.AuthRoleRevokePermissionRequest) error {
	old := c.now.Roles[r.GetRole()]
	if old == nil {
		return ErrRoleNotFound
	}
	role := &Role{Name: old.Name}
	for _, p := range old.Permissions {
		if !p.over(r.GetKey(), r.GetRangeEnd()) {
			role.Permissions = append(role.Permissions, p)
		}
	}
	if len(role.Permissions) == len(old.Permissions) {
		return ErrPermissionNotGranted
	}
	c.begin()
	c.putRole(role)
	return nil
}
