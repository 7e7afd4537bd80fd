package mvcc

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// EachSpan calls fn for every span of keys that a transaction names, in either
// branch and in the transactions nested in it, and says whether it may write there.
// It stops when fn returns false, and reports whether it came to the end.
func EachSpan(req *pb.TxnRequest, fn func(s keys.Span, write bool) bool) bool {
	for _, c := range req.GetCompare() {
		if !fn(keys.FromRange(c.Key, c.RangeEnd), false) {
			return false
		}
	}
	for _, branch := range [][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		for _, op := range branch {
			if !eachOpSpan(op, fn) {
				return false
			}
		}
	}
	return true
}

func eachOpSpan(op *pb.RequestOp, fn func(s keys.Span, write bool) bool) bool {
	switch o := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return fn(keys.FromRange(o.RequestRange.GetKey(), o.RequestRange.GetRangeEnd()), false)
	case *pb.RequestOp_RequestPut:
		return fn(keys.Point(o.RequestPut.GetKey()), true)
	case *pb.RequestOp_RequestDeleteRange:
		return fn(keys.FromRange(o.RequestDeleteRange.GetKey(), o.RequestDeleteRange.GetRangeEnd()), true)
	case *pb.RequestOp_RequestTxn:
		return EachSpan(o.RequestTxn, fn)
	default:
		return true
	}
}

// EachPut calls fn for every put of a transaction, in either branch and in the
// transactions nested in it.
func EachPut(req *pb.TxnRequest, fn func(*pb.PutRequest)) {
	for _, branch := range [][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		for _, op := range branch {
			switch o := op.GetRequest().(type) {
			case *pb.RequestOp_RequestPut:
				fn(o.RequestPut)
			case *pb.RequestOp_RequestTxn:
				EachPut(o.RequestTxn, fn)
			}
		}
	}
}
