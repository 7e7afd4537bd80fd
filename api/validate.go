package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
)

// maxLeaseTTL is the longest time to live that etcd grants, in seconds.
const maxLeaseTTL = 9_000_000_000

// rules judges requests by what they say, without looking at any state. The
// order of the checks is part of the API: a request with two faults gets the
// error of the first.
type rules struct {
	// maxTxnOps bounds the compares and each branch of a transaction; what a
	// transaction leaves of it is the bound of those nested in it.
	maxTxnOps int
	// maxRequestBytes bounds the size that a write would have in etcd's log.
	maxRequestBytes int
	// envelope is the size in bytes of an entry in etcd's log beside the request.
	envelope int
	// minLeaseTTL is the shortest time to live that is granted, in seconds.
	minLeaseTTL int64
}

// envelopeOf returns the size of what etcd wraps around a request on the member
// given: the request's id, whose topmost 16 bits are the member's lowest.
func envelopeOf(member uint64) int {
	return proto.Size(&pb.InternalRaftRequest{Header: &pb.RequestHeader{ID: entryID(member)}})
}

func entryID(member uint64) uint64 { return member<<48 | 1<<47 }

// around returns the size of what etcd wraps around a request of a sender.
func (ru *rules) around(id auth.Identity) int {
	if id.User == "" && id.Revision == 0 {
		return ru.envelope
	}
	// The header's field number takes two bytes, and its length one without a
	// sender.
	const tag, length = 2, 1
	header := ru.envelope - tag - length + proto.Size(&pb.RequestHeader{Username: id.User, AuthRevision: id.Revision})
	return tag + protowire.SizeBytes(header)
}

// size refuses a write that is too large for etcd's log, of the sender that ctx
// names.
func (ru *rules) size(ctx context.Context, m proto.Message) error {
	// Each kind of request has a field number below 16, so its tag is one byte.
	if ru.around(auth.From(ctx))+1+protowire.SizeBytes(proto.Size(m)) > ru.maxRequestBytes {
		return errRequestTooLarge
	}
	return nil
}

// entrySize is size for a request that has its place in an entry, without header.
func (ru *rules) entrySize(id auth.Identity, r *pb.InternalRaftRequest) error {
	if ru.around(id)+proto.Size(r) > ru.maxRequestBytes {
		return errRequestTooLarge
	}
	return nil
}

// txn judges a transaction with all that is nested in it.
func (ru *rules) txn(r *pb.TxnRequest) error {
	if err := checkTxn(r, ru.maxTxnOps); err != nil {
		return err
	}
	if err := checkOverlap(r.GetSuccess()); err != nil {
		return err
	}
	return checkOverlap(r.GetFailure())
}

// isReadOnly tells whether a transaction changes nothing whichever branch is taken;
// such a one is never logged and may have any size. Like etcd, it does not look into nested transactions: those count as
// writes.
func isReadOnly(r *pb.TxnRequest) bool {
	return allRanges(r.GetSuccess()) && allRanges(r.GetFailure())
}

func allRanges(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		if op.GetRequestRange() == nil {
			return false
		}
	}
	return true
}

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return errEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.GetSortOrder())]; !ok {
		return errInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.GetSortTarget())]; !ok {
		return errInvalidSortOption
	}
	return nil
}

// checkRangeStream judges a streamed range, which is sent while it is read: it
// can be neither sorted nor filtered as a whole.
func checkRangeStream(r *pb.RangeRequest) error {
	if err := checkRange(r); err != nil {
		return err
	}
	ascendingKeys := r.GetSortOrder() == pb.RangeRequest_ASCEND && r.GetSortTarget() == pb.RangeRequest_KEY
	if r.GetSortOrder() != pb.RangeRequest_NONE && !ascendingKeys {
		return errStreamSort
	}
	if r.GetMinModRevision() != 0 || r.GetMaxModRevision() != 0 ||
		r.GetMinCreateRevision() != 0 || r.GetMaxCreateRevision() != 0 {
		return errStreamFilter
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return errEmptyKey
	case r.GetIgnoreValue() && len(r.GetValue()) != 0:
		return errValueProvided
	case r.GetIgnoreLease() && r.GetLease() != 0:
		return errLeaseProvided
	default:
		return nil
	}
}

func checkDeleteRange(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return errEmptyKey
	}
	return nil
}

// checkTxn judges a transaction that may have up to budget compares, and as many
// operations in each branch. The recursion ends: every level takes at least one
// from the budget.
func checkTxn(r *pb.TxnRequest, budget int) error {
	used := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if used > budget {
		return errTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return errEmptyKey
		}
	}
	for _, op := range r.GetSuccess() {
		if err := checkOp(op, budget-used); err != nil {
			return err
		}
	}
	for _, op := range r.GetFailure() {
		if err := checkOp(op, budget-used); err != nil {
			return err
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, budget int) error {
	switch o := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(o.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(o.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDeleteRange(o.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(o.RequestTxn, budget)
	default:
		// An operation without any request: etcd calls that a missing key.
		return errKeyNotFound
	}
}
