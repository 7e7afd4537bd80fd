package mvcc

import (
	"bytes"
	"cmp"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// branch is the path that a transaction takes. All of it is decided before the
// first operation runs, nested transactions included.
type branch struct {
	succeeded bool
	ops       []*pb.RequestOp
	// nested has the branches of the transactions among ops, in their order.
	nested []branch
}

// plan evaluates the compares of req and of the transactions nested on the path
// it takes.
func (r *reader) plan(ctx context.Context, req *pb.TxnRequest) (branch, error) {
	ok, err := r.compareAll(ctx, req.GetCompare())
	if err != nil {
		return branch{}, err
	}
	b := branch{succeeded: ok, ops: req.GetSuccess()}
	if !ok {
		b.ops = req.GetFailure()
	}
	for _, op := range b.ops {
		t, ok := op.GetRequest().(*pb.RequestOp_RequestTxn)
		if !ok {
			continue
		}
		n, err := r.plan(ctx, t.RequestTxn)
		if err != nil {
			return branch{}, err
		}
		b.nested = append(b.nested, n)
	}
	return b, nil
}

func (r *reader) compareAll(ctx context.Context, compares []*pb.Compare) (bool, error) {
	for _, c := range compares {
		if ok, err := r.compare(ctx, c); !ok {
			return false, err
		}
	}
	return true, nil
}

// compare reports whether c holds for every key it names. Keys that don't exist
// have zero in all their fields and no value that any other could be compared
// with.
func (r *reader) compare(ctx context.Context, c *pb.Compare) (holds bool, err error) {
	if len(c.RangeEnd) == 0 {
		it := r.get(c.Key)
		if it == nil {
			return missingHolds(c), nil
		}
		return r.itemHolds(c, it)
	}
	none, n := true, 0
	r.ascend(keys.FromRange(c.Key, c.RangeEnd), func(it *item) bool {
		none = false
		holds, err = r.itemHolds(c, it)
		if n++; n%ctxInterval == 0 && err == nil {
			err = ctx.Err()
		}
		return holds && err == nil
	})
	if none {
		return missingHolds(c), nil
	}
	return holds && err == nil, err
}

// Holds reports whether c holds for the keys it names, which are kvs, as a
// transaction would find.
func Holds(c *pb.Compare, kvs []*mvccpb.KeyValue) bool {
	if len(kvs) == 0 {
		return missingHolds(c)
	}
	for _, kv := range kvs {
		it := &item{create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease}
		if !fieldHolds(c, it, kv.Value) {
			return false
		}
	}
	return true
}

func missingHolds(c *pb.Compare) bool {
	return c.Target != pb.Compare_VALUE && resultHolds(c, cmp.Compare(0, operand(c)))
}

func (r *reader) itemHolds(c *pb.Compare, it *item) (bool, error) {
	var value []byte
	if c.Target == pb.Compare_VALUE {
		var err error
		if value, err = r.value(it); err != nil {
			return false, err
		}
	}
	return fieldHolds(c, it, value), nil
}

// fieldHolds reports whether c holds for version it, whose value is given where c
// compares it.
func fieldHolds(c *pb.Compare, it *item, value []byte) bool {
	var field int64
	switch c.Target {
	case pb.Compare_VALUE:
		return resultHolds(c, bytes.Compare(value, c.GetValue()))
	case pb.Compare_VERSION:
		field = it.version
	case pb.Compare_CREATE:
		field = it.create
	case pb.Compare_MOD:
		field = it.mod
	case pb.Compare_LEASE:
		field = it.lease
	default:
		return resultHolds(c, 0)
	}
	return resultHolds(c, cmp.Compare(field, operand(c)))
}

// operand returns the number that c compares with. One that was given for
// another target than c's does not count.
func operand(c *pb.Compare) int64 {
	switch c.Target {
	case pb.Compare_VERSION:
		return c.GetVersion()
	case pb.Compare_CREATE:
		return c.GetCreateRevision()
	case pb.Compare_MOD:
		return c.GetModRevision()
	case pb.Compare_LEASE:
		return c.GetLease()
	case pb.Compare_VALUE:
	}
	return 0
}

// resultHolds reports whether the outcome of a comparison is the one c asks for.
func resultHolds(c *pb.Compare, outcome int) bool {
	switch c.Result {
	case pb.Compare_EQUAL:
		return outcome == 0
	case pb.Compare_NOT_EQUAL:
		return outcome != 0
	case pb.Compare_GREATER:
		return outcome > 0
	case pb.Compare_LESS:
		return outcome < 0
	}
	return true
}

// checkTxnRange returns the error of a range inside a transaction. Other than
// outside of one, a negative revision does not mean the newest.
func (r *reader) checkTxnRange(req *pb.RangeRequest) error {
	switch {
	case req.Revision == 0:
		return nil
	case req.Revision > r.rev:
		return ErrFutureRev
	case req.Revision < r.floor:
		return ErrCompacted
	}
	return nil
}

// txn runs a transaction whose path only reads.
func (r *reader) txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	b, err := r.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := r.checkReads(&b); err != nil {
		return nil, err
	}
	r.counters.countTxn(&b)
	resp := newTxnResponse(&b)
	resp.Header.Revision = r.rev
	return resp, r.runReads(ctx, &b, resp)
}

func (r *reader) checkReads(b *branch) error {
	nested := b.nested
	for _, op := range b.ops {
		var err error
		switch op := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			err = r.checkTxnRange(op.RequestRange)
		case *pb.RequestOp_RequestTxn:
			err = r.checkReads(&nested[0])
			nested = nested[1:]
		default:
			err = ErrEmptyOp
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) runReads(ctx context.Context, b *branch, resp *pb.TxnResponse) error {
	nested := b.nested
	for i, op := range b.ops {
		switch op := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			a, err := r.rangeKeys(ctx, op.RequestRange)
			if err != nil {
				return err
			}
			resp.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: a}}
		case *pb.RequestOp_RequestTxn:
			a := newTxnResponse(&nested[0])
			if err := r.runReads(ctx, &nested[0], a); err != nil {
				return err
			}
			nested = nested[1:]
			resp.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: a}}
		}
	}
	return nil
}

// newTxnResponse returns the answer of a transaction on branch b, with an empty
// header and room for the answers of its operations.
func newTxnResponse(b *branch) *pb.TxnResponse {
	return &pb.TxnResponse{
		Header: &pb.ResponseHeader{}, Succeeded: b.succeeded,
		Responses: make([]*pb.ResponseOp, len(b.ops)),
	}
}
