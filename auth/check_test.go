package auth

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestWhoMayWhat(t *testing.T) {
	s := enabled(t, permit("r", read, "k", ""))
	old := Identity{User: "u", Revision: s.Revision - 1, Known: true, Signed: true}
	later := Identity{User: "u", Revision: s.Revision + 1, Known: true, Signed: true}
	for _, tc := range []struct {
		name                string
		id                  Identity
		read, admin, member error
	}{
		{"root", s.who(Root), nil, nil, nil},
		{"a user with the right", s.who("u"), nil, ErrPermissionDenied, nil},
		{"a user without", s.who("none"), ErrPermissionDenied, ErrPermissionDenied, nil},
		{"a user that is gone", s.who("gone"), ErrPermissionDenied, ErrUserNotFound, nil},
		{"nobody", Identity{}, ErrUserEmpty, ErrUserEmpty, ErrUserEmpty},
		{"an old token", old, ErrOldRevision, ErrPermissionDenied, nil},
		{"root with an old token", Identity{User: Root, Revision: 1, Known: true}, ErrOldRevision, nil, nil},
		{"a token of a later revision", later, nil, ErrPermissionDenied, nil},
		{"a certificate without a name", s.who(""), ErrPermissionDenied, ErrUserEmpty, nil},
		{"the server", Server, nil, nil, nil},
	} {
		for what, pair := range map[string][2]error{
			"read":   {s.Read(tc.id, []byte("k"), nil), tc.read},
			"admin":  {s.Admin(tc.id), tc.admin},
			"member": {s.Member(tc.id), tc.member},
		} {
			if !errors.Is(pair[0], pair[1]) {
				t.Errorf("%s, %s: %v, want %v", tc.name, what, pair[0], pair[1])
			}
		}
	}
	off := after(t, s, disable())
	for _, id := range []Identity{{}, old, off.who("none")} {
		if err := errors.Join(off.Read(id, []byte("k"), nil), off.Write(id, []byte("k"), nil), off.Admin(id), off.Member(id)); err != nil {
			t.Errorf("%+v while nothing is checked: %v", id, err)
		}
	}
}

func opRange(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func opPut(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func opDelete(r *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

func opTxn(r *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

// Whatever an operation needs it needs in every place of a transaction: both
// branches, and at any depth.
func TestTransactionsAreCheckedWhole(t *testing.T) {
	// u may read ro, write wo, and do both to rw and all below it.
	s := enabled(t, permit("r", read, "ro", ""), permit("r", write, "wo", ""), permit("r", both, "rw", "rx"))
	u := s.who("u")
	for _, tc := range []struct {
		name string
		op   *pb.RequestOp
		want error
	}{
		{"read", opRange("ro", ""), nil},
		{"read of what may be written", opRange("wo", ""), ErrPermissionDenied},
		{"read of a range", opRange("rw", "rx"), nil},
		{"read beyond", opRange("rw", "ry"), ErrPermissionDenied},
		{"read from a key on", opRange("rw", "\x00"), ErrPermissionDenied},
		{"put", opPut(&pb.PutRequest{Key: []byte("wo")}), nil},
		{"put of what may be read", opPut(&pb.PutRequest{Key: []byte("ro")}), ErrPermissionDenied},
		{"put that answers the value before", opPut(&pb.PutRequest{Key: []byte("wo"), PrevKv: true}), ErrPermissionDenied},
		{"put that may", opPut(&pb.PutRequest{Key: []byte("rw"), PrevKv: true}), nil},
		{"delete", opDelete(&pb.DeleteRangeRequest{Key: []byte("wo")}), nil},
		{"delete that answers the values before", opDelete(&pb.DeleteRangeRequest{Key: []byte("wo"), PrevKv: true}), ErrPermissionDenied},
		{"delete of what may be read", opDelete(&pb.DeleteRangeRequest{Key: []byte("ro"), PrevKv: true}), ErrPermissionDenied},
		{"delete of a range", opDelete(&pb.DeleteRangeRequest{Key: []byte("rw"), RangeEnd: []byte("rx"), PrevKv: true}), nil},
		{"delete beyond", opDelete(&pb.DeleteRangeRequest{Key: []byte("rw"), RangeEnd: []byte("\x00")}), ErrPermissionDenied},
		{"compare", opTxn(&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("ro")}}}), nil},
		{"compare of what may be written", opTxn(&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("wo")}}}), ErrPermissionDenied},
		{"compare of a range", opTxn(&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("rw"), RangeEnd: []byte("\x00")}}}), ErrPermissionDenied},
		{"nothing", &pb.RequestOp{}, nil},
	} {
		harmless := opRange("ro", "")
		for place, r := range map[string]*pb.TxnRequest{
			"success": {Success: []*pb.RequestOp{harmless, tc.op}},
			"failure": {Failure: []*pb.RequestOp{harmless, tc.op}},
			"nested":  {Success: []*pb.RequestOp{opTxn(&pb.TxnRequest{Failure: []*pb.RequestOp{tc.op}})}},
			"deeply nested": {Failure: []*pb.RequestOp{opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{
				harmless, opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{tc.op}}),
			}})}},
		} {
			if err := s.Txn(u, r); !errors.Is(err, tc.want) {
				t.Errorf("%s in %s: %v, want %v", tc.name, place, err, tc.want)
			}
			if err := s.Txn(s.who(Root), r); err != nil {
				t.Errorf("%s in %s by root: %v", tc.name, place, err)
			}
		}
	}
}

// Leases that a transaction may use are found in both branches and at any depth.
func TestLeasesOfTransactions(t *testing.T) {
	put := func(id int64) *pb.RequestOp { return opPut(&pb.PutRequest{Key: []byte("k"), Lease: id}) }
	r := &pb.TxnRequest{
		Success: []*pb.RequestOp{put(1), put(0), opTxn(&pb.TxnRequest{Failure: []*pb.RequestOp{put(2), opRange("k", "")}})},
		Failure: []*pb.RequestOp{opDelete(&pb.DeleteRangeRequest{}), put(-3), put(1)},
	}
	if diff := cmp.Diff([]int64{1, 2, -3, 1}, Leases(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWritable(t *testing.T) {
	s := enabled(t, permit("r", write, "w", ""), permit("r", read, "r", ""))
	old := Identity{User: "u", Revision: 1, Known: true}
	for _, tc := range []struct {
		name    string
		id      Identity
		all     bool
		w       bool
		refusal error
	}{
		{"root", s.who(Root), true, false, ErrPermissionDenied},
		{"root with an old token", Identity{User: Root, Revision: 1}, true, false, ErrOldRevision},
		{"u", s.who("u"), false, true, ErrPermissionDenied},
		{"u with an old token", old, false, false, ErrOldRevision},
		{"a stranger", s.who("x"), false, false, ErrPermissionDenied},
		{"nobody", Identity{}, false, false, ErrUserEmpty},
	} {
		writable, all := s.Writable(tc.id)
		if all != tc.all || writable.Contains([]byte("w")) != tc.w || writable.Contains([]byte("r")) {
			t.Errorf("%s: %v, all %v", tc.name, writable, all)
		}
		if err := s.Refusal(tc.id); !errors.Is(err, tc.refusal) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.refusal)
		}
	}
}

func TestIdentityOfContext(t *testing.T) {
	ctx := context.Background()
	if id := From(ctx); id != (Identity{}) {
		t.Errorf("%+v comes from nowhere", id)
	}
	want := Identity{User: "u", Revision: 7, Known: true}
	if id := From(With(With(ctx, Server), want)); id != want {
		t.Errorf("%+v, want %+v", id, want)
	}
}
