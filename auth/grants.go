package auth

import (
	"bytes"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/pkg/v3/adt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// grants are one user's rights. They are kept in etcd's interval trees, whose
// answers for ranges that end before they begin no other structure gives.
type grants struct {
	read, write adt.IntervalTree
	// writable are the keys of write.
	writable keys.Set
}

// merge puts the permissions of a user's roles together. A role that is not there
// gives none.
func (s *State) merge(u *User) *grants {
	g := &grants{read: adt.NewIntervalTree(), write: adt.NewIntervalTree()}
	var writable []keys.Span
	for _, name := range u.Roles {
		role := s.Roles[name]
		if role == nil {
			continue
		}
		for _, p := range role.Permissions {
			over := interval(p.Key, p.End)
			if p.Type == authpb.Permission_READ || p.Type == authpb.Permission_READWRITE {
				g.read.Insert(over, struct{}{})
			}
			if p.Type == authpb.Permission_WRITE || p.Type == authpb.Permission_READWRITE {
				g.write.Insert(over, struct{}{})
				writable = append(writable, keys.FromRange(p.Key, p.End))
			}
		}
	}
	g.writable = keys.NewSet(writable...)
	return g
}

// interval returns the keys of a range as the trees know them.
func interval(key, end []byte) adt.Interval {
	switch {
	case len(end) == 0:
		return adt.NewBytesAffinePoint(key)
	case keys.IsFromKey(end):
		return adt.NewBytesAffineInterval(key, nil)
	default:
		return adt.NewBytesAffineInterval(key, end)
	}
}

// covers reports whether the rights in tree reach over a whole range, several of
// them together if need be.
func covers(tree adt.IntervalTree, key, end []byte) bool {
	if len(end) == 0 {
		return tree.Intersects(interval(key, end))
	}
	return tree.Contains(interval(key, end))
}

// validRange reports whether a permission may be given for a range: it must not be
// empty, nor begin at the empty key.
func validRange(key, end []byte) bool {
	if len(key) == 0 {
		return false
	}
	return len(end) == 0 || keys.IsFromKey(end) || bytes.Compare(key, end) < 0
}
