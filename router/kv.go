package router

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// Range answers a range request.
func (r *Router) Range(ctx context.Context, req *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	span := keys.FromRange(req.Key, req.RangeEnd)
	f := fresh{serializable: req.Serializable, rev: req.Revision}
	err = r.readAt(ctx, []keys.Span{span}, f, func(a access) error {
		return a.users.Read(a.id, req.Key, req.RangeEnd)
	}, func(l *view) error {
		resp, err = l.rangeKeys(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.noteShown(resp.Header)
	return resp, nil
}

// readAt calls read with the keys in spans at one revision, if the sender may and
// nothing of that has changed when they were read; again if what was read has been
// replaced meanwhile.
func (r *Router) readAt(ctx context.Context, spans []keys.Span, f fresh, check func(access) error, read func(*view) error) error {
	for {
		l, err := r.openView(ctx, spans, f)
		if err != nil {
			return r.refusal(ctx, check, err)
		}
		err = r.readIn(ctx, l, check, read)
		l.close()
		if !errors.Is(err, mvcc.ErrReplaced) {
			return err
		}
	}
}

// refusal returns what becomes of a request that could not be tried: whoever may not
// ask hears of that, not of which revisions there are or where keys lie.
func (r *Router) refusal(ctx context.Context, check func(access) error, err error) error {
	if !errors.Is(err, mvcc.ErrFutureRev) && !errors.Is(err, mvcc.ErrCompacted) && !errors.Is(err, ErrSeveralShards) {
		return err
	}
	a, failed := r.access(ctx)
	if failed != nil {
		return failed
	}
	if refused := check(a); refused != nil {
		return refused
	}
	if outdated := a.current(); outdated != nil {
		return outdated
	}
	return err
}

func (r *Router) readIn(ctx context.Context, l *view, check func(access) error, read func(*view) error) error {
	a, err := r.access(ctx)
	if err != nil {
		return err
	}
	if err := check(a); err != nil {
		return err
	}
	err = read(l)
	for _, v := range l.views {
		if changed := a.holds(v.d); changed != nil {
			return changed
		}
	}
	return err
}

// RangeStream answers a range request in chunks of about maxBytes, all of one
// revision.
func (r *Router) RangeStream(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	span := keys.FromRange(req.Key, req.RangeEnd)
	check := func(a access) error { return a.users.Read(a.id, req.Key, req.RangeEnd) }
	l, err := r.openView(ctx, []keys.Span{span}, fresh{serializable: req.Serializable, rev: req.Revision})
	if err != nil {
		return r.refusal(ctx, check, err)
	}
	defer l.close()
	if err := r.readIn(ctx, l, check, func(*view) error { return nil }); err != nil {
		return err
	}
	return l.stream(ctx, req, maxBytes, func(chunk *pb.RangeResponse) error {
		r.noteShown(chunk.Header)
		return emit(chunk)
	})
}

// Put writes one key.
func (r *Router) Put(ctx context.Context, req *pb.PutRequest) (*pb.PutResponse, error) {
	d, err := r.span(keys.Point(req.Key))
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.users.Put(a.id, req); err != nil {
		return nil, err
	}
	var leases []int64
	if req.Lease != 0 {
		leases = []int64{req.Lease}
	}
	if err := r.mayUse(ctx, a, d, leases...); err != nil {
		return nil, err
	}
	return write[*pb.PutResponse](ctx, r, d, a.command(shard.KindPut, req, leases...))
}

// DeleteRange deletes the keys of a range.
func (r *Router) DeleteRange(ctx context.Context, req *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	check := func(a access) error { return a.users.DeleteRange(a.id, req) }
	d, err := r.span(keys.FromRange(req.Key, req.RangeEnd))
	if errors.Is(err, ErrSeveralShards) && r.writesWide() {
		return r.wideDelete(ctx, req, check)
	}
	if err != nil {
		return nil, r.refusal(ctx, check, err)
	}
	if resp, done, err := r.unchangedDelete(ctx, req, check); done {
		return resp, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := check(a); err != nil {
		return nil, err
	}
	return write[*pb.DeleteRangeResponse](ctx, r, d, a.command(shard.KindDeleteRange, req))
}

// Txn runs a transaction.
func (r *Router) Txn(ctx context.Context, req *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	check := func(a access) error { return a.users.Txn(a.id, req) }
	if reads, serializable := readOnly(req); reads || !writes(req) {
		return r.readTxn(ctx, req, fresh{serializable: serializable}, check)
	}
	d, err := r.txnShard(req)
	if errors.Is(err, ErrSeveralShards) && r.writesWide() {
		return r.wideTxn(ctx, req, check)
	}
	if err != nil {
		return nil, r.refusal(ctx, check, err)
	}
	leases := auth.Leases(req)
	checkAll := func(a access) error {
		if err := check(a); err != nil {
			return err
		}
		return r.mayUse(ctx, a, d, leases...)
	}
	if resp, done, err := r.unchangedTxn(ctx, req, checkAll, comparesIn(d)); done {
		return resp, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkAll(a); err != nil {
		return nil, err
	}
	return write[*pb.TxnResponse](ctx, r, d, a.command(shard.KindTxn, req, leases...))
}

// readTxn answers a transaction that names no key to write.
func (r *Router) readTxn(
	ctx context.Context, req *pb.TxnRequest, f fresh, check func(access) error,
) (resp *pb.TxnResponse, err error) {
	answer := (*view).txn
	if reads, _ := readOnly(req); !reads {
		answer = (*view).lookOnly
	}
	var spans []keys.Span
	mvcc.EachSpan(req, func(s keys.Span, _ bool) bool {
		spans = append(spans, s)
		return true
	})
	err = r.readAt(ctx, spans, f, check, func(l *view) error {
		resp, err = answer(l, ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.noteShown(resp.Header)
	return resp, nil
}

// txnShard returns the shard that owns every key that the transaction names.
func (r *Router) txnShard(req *pb.TxnRequest) (d *shard.Data, err error) {
	var first keys.Span
	mvcc.EachSpan(req, func(s keys.Span, _ bool) bool {
		if s.Empty() {
			return true
		}
		var owner *shard.Data
		owner, err = r.span(s)
		switch {
		case err != nil:
		case d == nil:
			d, first = owner, s
		case d != owner:
			err = r.wide(first, s)
		}
		return err == nil
	})
	if d == nil && err == nil {
		return r.span(keys.Point([]byte{0}))
	}
	return d, err
}

// writes reports whether a transaction names keys to write.
func writes(req *pb.TxnRequest) bool {
	return !mvcc.EachSpan(req, func(s keys.Span, write bool) bool { return !write || s.Empty() })
}

// readOnly reports whether the transaction, with those nested in it, only reads, and
// whether it may be answered from what this node has: as in etcd, not where another is
// nested in it.
func readOnly(req *pb.TxnRequest) (reads, serializable bool) {
	serializable = true
	for _, branch := range [][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range branch {
			switch o := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				serializable = serializable && o.RequestRange.GetSerializable()
			case *pb.RequestOp_RequestTxn:
				if nested, _ := readOnly(o.RequestTxn); !nested {
					return false, false
				}
				serializable = false
			default:
				return false, false
			}
		}
	}
	return true, serializable
}

// command is a request for a shard's log.
type command struct {
	kind    shard.Kind
	request proto.Message
	access  access
	// guard is nil for what may be applied unchecked.
	guard *shard.Guard
}

// command returns a user's request that was checked and uses leases.
func (a access) command(kind shard.Kind, req proto.Message, leases ...int64) command {
	return command{kind: kind, request: req, access: a, guard: a.guard(leases...)}
}

// write puts a command through the log of d.
func write[Response interface{ GetHeader() *pb.ResponseHeader }](ctx context.Context, r *Router, d *shard.Data, c command) (resp Response, err error) {
	err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		resp, err = writeOnce[Response](ctx, r, l, c)
		return err
	})
	return resp, err
}

// writeOnce has a leader put a command through the log.
func writeOnce[Response interface{ GetHeader() *pb.ResponseHeader }](ctx context.Context, r *Router, l Leader, c command) (resp Response, err error) {
	result, err := l.Write(ctx, c.guard, c.kind, c.request)
	if err != nil {
		return resp, c.access.refused(err)
	}
	resp, ok := result.(Response)
	if !ok {
		return resp, fmt.Errorf("write: the command answered %T", result)
	}
	r.noteShown(resp.GetHeader())
	return resp, nil
}
