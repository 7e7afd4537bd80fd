package auth

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/pkg/v3/adt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// The checks below answer nil where requests are not checked. Ranges are checked
// as the client wrote them: a range end that means something else to the store
// would mean something else to the check.

// Admin reports whether the sender may do what is reserved to the root role.
func (s *State) Admin(id Identity) error {
	if !s.Enabled || id.server {
		return nil
	}
	if id.User == "" {
		return ErrUserEmpty
	}
	u := s.Users[id.User]
	if u == nil {
		return ErrUserNotFound
	}
	if !u.has(Root) {
		return ErrPermissionDenied
	}
	return nil
}

// Member reports whether the sender is known at all.
func (s *State) Member(id Identity) error {
	if !s.Enabled || id.server || id.Known {
		return nil
	}
	return ErrUserEmpty
}

// allowed reports whether the sender has the rights that tree picks to a range.
func (s *State) allowed(id Identity, key, end []byte, tree func(*grants) adt.IntervalTree) error {
	if !s.Enabled || id.server {
		return nil
	}
	if id.Revision == 0 {
		return ErrUserEmpty
	}
	if id.Revision < s.Revision {
		return ErrOldRevision
	}
	if s.Users[id.User] == nil {
		return ErrPermissionDenied
	}
	if s.root(id.User) || covers(tree(s.grants[id.User]), key, end) {
		return nil
	}
	return ErrPermissionDenied
}

// Read reports whether the sender may read a range.
func (s *State) Read(id Identity, key, end []byte) error {
	return s.allowed(id, key, end, func(g *grants) adt.IntervalTree { return g.read })
}

// Write reports whether the sender may write a range.
func (s *State) Write(id Identity, key, end []byte) error {
	return s.allowed(id, key, end, func(g *grants) adt.IntervalTree { return g.write })
}

// Put reports whether the sender may put a key. What hangs on the lease is not
// looked at: see Leases and Writable.
func (s *State) Put(id Identity, r *pb.PutRequest) error {
	if err := s.Write(id, r.GetKey(), nil); err != nil {
		return err
	}
	if r.GetPrevKv() {
		return s.Read(id, r.GetKey(), nil)
	}
	return nil
}

// DeleteRange reports whether the sender may delete a range.
func (s *State) DeleteRange(id Identity, r *pb.DeleteRangeRequest) error {
	if err := s.Write(id, r.GetKey(), r.GetRangeEnd()); err != nil {
		return err
	}
	if r.GetPrevKv() {
		return s.Read(id, r.GetKey(), r.GetRangeEnd())
	}
	return nil
}

// Txn reports whether the sender may do all that a transaction might do, whichever
// branches are taken, nested ones included. What hangs on the leases is not looked
// at: see Leases and Writable.
func (s *State) Txn(id Identity, r *pb.TxnRequest) error {
	for _, c := range r.GetCompare() {
		if err := s.Read(id, c.GetKey(), c.GetRangeEnd()); err != nil {
			return err
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range branch {
			if err := s.operation(id, op); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *State) operation(id Identity, op *pb.RequestOp) error {
	switch o := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return s.Read(id, o.RequestRange.GetKey(), o.RequestRange.GetRangeEnd())
	case *pb.RequestOp_RequestPut:
		return s.Put(id, o.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return s.DeleteRange(id, o.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return s.Txn(id, o.RequestTxn)
	default:
		return nil
	}
}

// Leases returns the leases that a transaction may put keys on, in either branch.
// Whoever puts a key on a lease could be writing what hangs on it already.
func Leases(r *pb.TxnRequest) []int64 {
	var leases []int64
	for _, branch := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range branch {
			switch o := op.GetRequest().(type) {
			case *pb.RequestOp_RequestPut:
				if id := o.RequestPut.GetLease(); id != 0 {
					leases = append(leases, id)
				}
			case *pb.RequestOp_RequestTxn:
				leases = append(leases, Leases(o.RequestTxn)...)
			}
		}
	}
	return leases
}

// Writable returns the keys that the sender may write, or true for all.
func (s *State) Writable(id Identity) (writable keys.Set, all bool) {
	if s.Admin(id) == nil {
		return nil, true
	}
	if id.Revision < s.Revision || s.Users[id.User] == nil {
		return nil, false
	}
	return s.grants[id.User].writable, false
}

// Refusal returns what a sender hears that may not write a key that hangs on a
// lease.
func (s *State) Refusal(id Identity) error {
	if id.Revision == 0 {
		return ErrUserEmpty
	}
	if id.Revision < s.Revision {
		return ErrOldRevision
	}
	return ErrPermissionDenied
}
