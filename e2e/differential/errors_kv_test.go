package differential

import (
	"bytes"
	"context"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
)

func rangeRefused(name string, r *pb.RangeRequest, code codes.Code, text string) refusal {
	return refusal{"Range: " + name, func(ctx context.Context, s *server) error {
		_, err := s.kv.Range(ctx, r)
		return err
	}, code, text}
}

func streamRefused(name string, r *pb.RangeRequest, code codes.Code, text string) refusal {
	return refusal{"RangeStream: " + name, func(ctx context.Context, s *server) error {
		stream, err := s.kv.RangeStream(ctx, r)
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}, code, text}
}

func putRefused(name string, r *pb.PutRequest, code codes.Code, text string) refusal {
	return refusal{"Put: " + name, func(ctx context.Context, s *server) error {
		_, err := s.kv.Put(ctx, r)
		return err
	}, code, text}
}

func deleteRefused(name string, r *pb.DeleteRangeRequest, code codes.Code, text string) refusal {
	return refusal{"DeleteRange: " + name, func(ctx context.Context, s *server) error {
		_, err := s.kv.DeleteRange(ctx, r)
		return err
	}, code, text}
}

func txnRefused(name string, r *pb.TxnRequest, code codes.Code, text string) refusal {
	return refusal{"Txn: " + name, func(ctx context.Context, s *server) error {
		_, err := s.kv.Txn(ctx, r)
		return err
	}, code, text}
}

func compactRefused(name string, r *pb.CompactionRequest, code codes.Code, text string) refusal {
	return refusal{"Compact: " + name, func(ctx context.Context, s *server) error {
		_, err := s.kv.Compact(ctx, r)
		return err
	}, code, text}
}

// Operations of transactions.
func asRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func asPut(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func asDelete(r *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

func asTxn(r *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

// Texts of the refusals.
const (
	noKey       = "etcdserver: key is not provided"
	keyUnknown  = "etcdserver: key not found"
	valueGiven  = "etcdserver: value is provided"
	leaseGiven  = "etcdserver: lease is provided"
	badSort     = "etcdserver: invalid sort option"
	tooManyOps  = "etcdserver: too many operations in txn request"
	doubleKey   = "etcdserver: duplicate key given in txn request"
	compacted   = "etcdserver: mvcc: required revision has been compacted"
	future      = "etcdserver: mvcc: required revision is a future revision"
	tooLarge    = "etcdserver: request is too large"
	noLease     = "etcdserver: requested lease not found"
	leaseExists = "etcdserver: lease already exists"
	ttlTooLong  = "etcdserver: too large lease TTL"
	noSorted    = "RangeStream does not support custom sort orders"
	noFiltered  = "RangeStream does not support revision filters"
)

// Where the servers stand when the refusals are tried.
const (
	goneRevision   = 2
	futureRevision = 1000
)

var (
	keyA = []byte("a")
	fat  = bytes.Repeat([]byte("x"), maxRequestBytes)
)

func rangeRefusals() []refusal {
	const invalid, outOfRange = codes.InvalidArgument, codes.OutOfRange
	return []refusal{
		rangeRefused("no key", &pb.RangeRequest{}, invalid, noKey),
		rangeRefused("no key but an end", &pb.RangeRequest{RangeEnd: keyA}, invalid, noKey),
		rangeRefused("unknown order", &pb.RangeRequest{Key: keyA, SortOrder: 3}, invalid, badSort),
		rangeRefused("unknown target", &pb.RangeRequest{Key: keyA, SortTarget: -1}, invalid, badSort),
		rangeRefused("future", &pb.RangeRequest{Key: keyA, Revision: futureRevision}, outOfRange, future),
		rangeRefused("compacted", &pb.RangeRequest{Key: keyA, Revision: goneRevision}, outOfRange, compacted),
		rangeRefused("far future, serializable", &pb.RangeRequest{Key: keyA, Revision: math.MaxInt64, Serializable: true}, outOfRange, future),
		rangeRefused("compacted, count only", &pb.RangeRequest{Key: keyA, Revision: goneRevision, CountOnly: true}, outOfRange, compacted),
		rangeRefused("no key and unknown order", &pb.RangeRequest{SortOrder: 3}, invalid, noKey),
		rangeRefused("no key and a future revision", &pb.RangeRequest{Revision: futureRevision}, invalid, noKey),
		rangeRefused("unknown target and a future revision", &pb.RangeRequest{Key: keyA, SortTarget: 9, Revision: futureRevision}, invalid, badSort),
		rangeRefused("empty range in the future", &pb.RangeRequest{Key: []byte("b"), RangeEnd: keyA, Revision: futureRevision}, outOfRange, future),
		rangeRefused("empty range of the past", &pb.RangeRequest{Key: []byte("b"), RangeEnd: keyA, Revision: goneRevision}, outOfRange, compacted),

		streamRefused("no key", &pb.RangeRequest{}, invalid, noKey),
		streamRefused("descending", &pb.RangeRequest{Key: keyA, SortOrder: pb.RangeRequest_DESCEND}, codes.Unimplemented, noSorted),
		streamRefused("by value", &pb.RangeRequest{Key: keyA, SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_VALUE}, codes.Unimplemented, noSorted),
		streamRefused("filtered", &pb.RangeRequest{Key: keyA, MinModRevision: 1}, codes.Unimplemented, noFiltered),
		streamRefused("unknown order, which is not the order of keys", &pb.RangeRequest{Key: keyA, SortOrder: 7}, invalid, badSort),
		streamRefused("sorted and filtered", &pb.RangeRequest{Key: keyA, SortOrder: pb.RangeRequest_DESCEND, MaxCreateRevision: 1}, codes.Unimplemented, noSorted),
		streamRefused("filtered in the future", &pb.RangeRequest{Key: keyA, MaxModRevision: -1, Revision: futureRevision}, codes.Unimplemented, noFiltered),
		streamRefused("future", &pb.RangeRequest{Key: keyA, Revision: futureRevision}, outOfRange, future),
		streamRefused("compacted", &pb.RangeRequest{Key: keyA, Revision: goneRevision}, outOfRange, compacted),
		streamRefused("compacted, count only", &pb.RangeRequest{Key: keyA, Revision: goneRevision, CountOnly: true}, outOfRange, compacted),
	}
}

func writeRefusals() []refusal {
	const invalid = codes.InvalidArgument
	return []refusal{
		putRefused("no key", &pb.PutRequest{Value: keyA}, invalid, noKey),
		putRefused("no key, too large", &pb.PutRequest{Value: fat}, invalid, noKey),
		putRefused("value to ignore", &pb.PutRequest{Key: keyA, Value: keyA, IgnoreValue: true}, invalid, valueGiven),
		putRefused("value and lease to ignore", &pb.PutRequest{Key: keyA, Value: keyA, IgnoreValue: true, Lease: 1, IgnoreLease: true}, invalid, valueGiven),
		putRefused("lease to ignore", &pb.PutRequest{Key: keyA, Lease: 99, IgnoreLease: true}, invalid, leaseGiven),
		putRefused("no key, value to ignore", &pb.PutRequest{Value: keyA, IgnoreValue: true}, invalid, noKey),
		putRefused("unknown lease", &pb.PutRequest{Key: keyA, Lease: 99}, codes.NotFound, noLease),
		putRefused("unknown lease, missing key", &pb.PutRequest{Key: []byte("none"), Lease: 99, IgnoreValue: true}, codes.NotFound, noLease),
		putRefused("keep the value of a missing key", &pb.PutRequest{Key: []byte("none"), IgnoreValue: true}, invalid, keyUnknown),
		putRefused("keep the lease of a missing key", &pb.PutRequest{Key: []byte("none"), IgnoreLease: true}, invalid, keyUnknown),
		putRefused("too large", &pb.PutRequest{Key: keyA, Value: fat}, invalid, tooLarge),
		putRefused("too large, unknown lease", &pb.PutRequest{Key: keyA, Value: fat, Lease: 99}, invalid, tooLarge),
		putRefused("too large a value to ignore", &pb.PutRequest{Key: keyA, Value: fat, IgnoreValue: true}, invalid, valueGiven),
		putRefused("beyond gRPC's limit", &pb.PutRequest{Key: keyA, Value: bytes.Repeat(keyA, 2<<20)}, codes.ResourceExhausted,
			"grpc: received message larger than max (2097160 vs. 2097152)"),

		deleteRefused("no key", &pb.DeleteRangeRequest{RangeEnd: keyA}, invalid, noKey),
		deleteRefused("too large", &pb.DeleteRangeRequest{Key: fat}, invalid, tooLarge),
		deleteRefused("no key, too large", &pb.DeleteRangeRequest{RangeEnd: fat}, invalid, noKey),

		compactRefused("negative", &pb.CompactionRequest{Revision: -1}, codes.OutOfRange, compacted),
		compactRefused("again", &pb.CompactionRequest{Revision: goneRevision + 1}, codes.OutOfRange, compacted),
		compactRefused("nothing", &pb.CompactionRequest{Physical: true}, codes.OutOfRange, compacted),
		compactRefused("future", &pb.CompactionRequest{Revision: futureRevision}, codes.OutOfRange, future),
		compactRefused("far future", &pb.CompactionRequest{Revision: math.MaxInt64, Physical: true}, codes.OutOfRange, future),
	}
}

func txnRefusals() []refusal {
	const invalid = codes.InvalidArgument
	get, set := asRange(&pb.RangeRequest{Key: keyA}), asPut(&pb.PutRequest{Key: keyA})
	setAt := func(key string) *pb.RequestOp { return asPut(&pb.PutRequest{Key: []byte(key)}) }
	del := func(key, end string) *pb.RequestOp {
		return asDelete(&pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
	}
	ops := func(o ...*pb.RequestOp) []*pb.RequestOp { return o }
	many := func(n int) []*pb.RequestOp { return slices.Repeat(ops(get), n) }
	return []refusal{
		txnRefused("compare without key", &pb.TxnRequest{Compare: []*pb.Compare{{}}}, invalid, noKey),
		txnRefused("compare without key, put without key and value to ignore", &pb.TxnRequest{
			Compare: []*pb.Compare{{}}, Success: ops(asPut(&pb.PutRequest{Key: keyA, Value: keyA, IgnoreValue: true})),
		}, invalid, noKey),
		txnRefused("empty operation", &pb.TxnRequest{Failure: ops(&pb.RequestOp{})}, invalid, keyUnknown),
		txnRefused("range without key", &pb.TxnRequest{Success: ops(asRange(&pb.RangeRequest{}))}, invalid, noKey),
		txnRefused("bad sort in the branch not taken", &pb.TxnRequest{Failure: ops(asRange(&pb.RangeRequest{Key: keyA, SortOrder: 5}))}, invalid, badSort),
		txnRefused("put without key", &pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{}))}, invalid, noKey),
		txnRefused("delete without key", &pb.TxnRequest{Success: ops(asDelete(&pb.DeleteRangeRequest{}))}, invalid, noKey),
		txnRefused("first success, then failure", &pb.TxnRequest{
			Success: ops(get, asPut(&pb.PutRequest{Key: keyA, Lease: 1, IgnoreLease: true})), Failure: ops(&pb.RequestOp{}),
		}, invalid, leaseGiven),
		txnRefused("129 operations", &pb.TxnRequest{Success: many(129)}, invalid, tooManyOps),
		txnRefused("129 operations, compare without key", &pb.TxnRequest{Compare: []*pb.Compare{{}}, Failure: many(129)}, invalid, tooManyOps),
		txnRefused("129 compares", &pb.TxnRequest{Compare: slices.Repeat([]*pb.Compare{{Key: keyA}}, 129)}, invalid, tooManyOps),
		txnRefused("nested in a full one", &pb.TxnRequest{Success: append(many(127), asTxn(&pb.TxnRequest{Success: ops(get)}))}, invalid, tooManyOps),
		txnRefused("a bad one before a full one", &pb.TxnRequest{
			Success: append(ops(&pb.RequestOp{}), append(many(126), asTxn(&pb.TxnRequest{Success: ops(get)}))...),
		}, invalid, keyUnknown),
		txnRefused("nested without key", &pb.TxnRequest{Success: ops(asTxn(&pb.TxnRequest{Failure: ops(asPut(&pb.PutRequest{}))}))}, invalid, noKey),
		txnRefused("two puts", &pb.TxnRequest{Success: ops(set, set)}, invalid, doubleKey),
		txnRefused("two puts in the branch not taken", &pb.TxnRequest{Failure: ops(set, set)}, invalid, doubleKey),
		txnRefused("put and delete", &pb.TxnRequest{Success: ops(set, del("a", ""))}, invalid, doubleKey),
		txnRefused("delete of a range and put", &pb.TxnRequest{Success: ops(del("a", "c"), setAt("b"))}, invalid, doubleKey),
		txnRefused("put and nested put", &pb.TxnRequest{Success: ops(set, asTxn(&pb.TxnRequest{Failure: ops(set)}))}, invalid, doubleKey),
		txnRefused("two puts nested side by side", &pb.TxnRequest{Success: ops(
			asTxn(&pb.TxnRequest{Success: ops(set)}), asTxn(&pb.TxnRequest{Failure: ops(set)}))}, invalid, doubleKey),
		txnRefused("delete and nested put", &pb.TxnRequest{Success: ops(asTxn(&pb.TxnRequest{Success: ops(set)}), del("a", ""))}, invalid, doubleKey),
		txnRefused("two puts, unknown lease", &pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{Key: keyA, Lease: 99}), set)}, invalid, doubleKey),
		txnRefused("two puts, one without key", &pb.TxnRequest{Success: ops(set, set, asPut(&pb.PutRequest{}))}, invalid, noKey),
		txnRefused("two puts, too large", &pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{Key: keyA, Value: fat}), set)}, invalid, doubleKey),
		txnRefused("too large", &pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{Key: keyA, Value: fat}))}, invalid, tooLarge),
		txnRefused("too large in the branch not taken", &pb.TxnRequest{Failure: ops(asPut(&pb.PutRequest{Key: keyA, Value: fat}))}, invalid, tooLarge),
		txnRefused("unknown lease", &pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{Key: keyA, Lease: 99}))}, codes.NotFound, noLease),
		txnRefused("missing key, then unknown lease", &pb.TxnRequest{Success: ops(
			asPut(&pb.PutRequest{Key: []byte("none"), IgnoreValue: true}), asPut(&pb.PutRequest{Key: keyA, Lease: 99}))}, invalid, keyUnknown),
		txnRefused("unknown lease, then future", &pb.TxnRequest{Success: ops(
			asPut(&pb.PutRequest{Key: keyA, Lease: 99}), asRange(&pb.RangeRequest{Key: keyA, Revision: futureRevision}))}, codes.NotFound, noLease),
		txnRefused("future, then unknown lease", &pb.TxnRequest{Success: ops(
			asRange(&pb.RangeRequest{Key: keyA, Revision: futureRevision}), asPut(&pb.PutRequest{Key: keyA, Lease: 99}))}, codes.OutOfRange, future),
		txnRefused("its own revision", &pb.TxnRequest{Success: ops(set, asRange(&pb.RangeRequest{Key: keyA, Revision: 7}))}, codes.OutOfRange, future),
		txnRefused("compacted", &pb.TxnRequest{Success: ops(asRange(&pb.RangeRequest{Key: keyA, Revision: goneRevision}))}, codes.OutOfRange, compacted),
		txnRefused("negative revision", &pb.TxnRequest{Success: ops(asRange(&pb.RangeRequest{Key: keyA, Revision: -1}))}, codes.OutOfRange, compacted),
		txnRefused("keep the value of a key put before", &pb.TxnRequest{Success: ops(
			setAt("none"), asTxn(&pb.TxnRequest{Success: ops(asPut(&pb.PutRequest{Key: []byte("other"), IgnoreValue: true}))}))}, invalid, keyUnknown),
	}
}
