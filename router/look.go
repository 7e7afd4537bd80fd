package router

import (
	"bytes"
	"context"
	"math"
	"slices"

	"github.com/tidwall/btree"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// look runs a transaction over several shards on the state that it holds, and changes nothing:
// it finds which path the transaction takes, what that changes, and, once the revision of the
// whole is known, what it answers.
type look struct {
	ctx context.Context //nolint:containedctx // lives for one call
	l   *view
	// missing are leases that don't exist.
	missing map[int64]bool
	// rev is the transaction's revision, or one above all that exist while it is not known.
	rev int64
	// newest is the newest revision that the transaction can read at, 0 before it is known.
	newest int64
	// lowest and highest are those that the transaction reads at, 0 if it names none.
	lowest, highest int64
	// own are the keys that the transaction has changed so far.
	own btree.Map[string, *own]
	// place counts the changes, and shares are what they are by shard; nil where nobody asks for them.
	place  uint32
	shares map[*shard.Data][]mvcc.Placed
}

// own is what a transaction has made of a key.
type own struct {
	// kv is nil for a key that it deleted, and while put is set: a put of a key that it had not changed before, of which nobody
	// has asked yet what was there.
	kv  *mvccpb.KeyValue
	put *pb.PutRequest
}

// unknownRev stands for the revision of a transaction that has none yet.
const unknownRev = math.MaxInt64

// plan is the path that a transaction takes, with those nested in it.
type plan struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    []plan
}

// plan evaluates the compares of a transaction and of those nested on its path, all on the
// state before it.
func (k *look) plan(req *pb.TxnRequest) (p plan, err error) {
	p.succeeded, p.ops = true, req.Success
	for _, c := range req.Compare {
		var found []*mvccpb.KeyValue
		if found, err = k.before(keys.FromRange(c.Key, c.RangeEnd), withValues); err != nil {
			return p, err
		}
		if !mvcc.Holds(c, found) {
			p.succeeded, p.ops = false, req.Failure
			break
		}
	}
	for _, op := range p.ops {
		if t := op.GetRequestTxn(); t != nil {
			n, err := k.plan(t)
			if err != nil {
				return p, err
			}
			p.nested = append(p.nested, n)
		}
	}
	return p, nil
}

// check returns the error for which a transaction on path p is rejected, that of the first
// operation that has one, and takes note of the revisions that it reads at.
func (k *look) check(p *plan) error {
	nested := p.nested
	for _, op := range p.ops {
		var err error
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = k.checkRange(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = k.checkPut(o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
		case *pb.RequestOp_RequestTxn:
			err = k.check(&nested[0])
			nested = nested[1:]
		default:
			err = mvcc.ErrEmptyOp
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *look) checkRange(req *pb.RangeRequest) error {
	if req.Revision == 0 {
		return nil
	}
	if err := k.learnNewest(); err != nil {
		return err
	}
	switch {
	case req.Revision > k.newest:
		return mvcc.ErrFutureRev
	case req.Revision < k.l.compacted:
		return mvcc.ErrCompacted // a negative one does not mean the newest here
	case k.lowest == 0 || req.Revision < k.lowest:
		k.lowest = req.Revision
	}
	k.highest = max(k.highest, req.Revision)
	return nil
}

// learnNewest asks which revisions there are to read at. What is held does not change before the
// transaction is decided, so that it is rejected as of the moment of the answer.
func (k *look) learnNewest() error {
	if k.newest != 0 {
		return nil
	}
	now, err := k.l.r.newestNumber(k.ctx)
	if err == nil {
		k.newest, k.l.compacted = now.Newest, max(k.l.compacted, now.Compacted)
	}
	return err
}

func (k *look) checkPut(req *pb.PutRequest) error {
	if req.Lease != 0 && k.missing[req.Lease] {
		return mvcc.ErrLeaseNotFound
	}
	if req.IgnoreValue || req.IgnoreLease {
		found, err := k.before(keys.Point(req.Key), keysOnly)
		if err == nil && len(found) == 0 {
			err = mvcc.ErrKeyNotFound
		}
		return err
	}
	return nil
}

// run runs the operations of a path in their order.
func (k *look) run(p *plan) (*pb.TxnResponse, error) {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: p.succeeded}
	nested := p.nested
	for _, op := range p.ops {
		out := &pb.ResponseOp{}
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			a, err := k.rangeKeys(o.RequestRange)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: a}
		case *pb.RequestOp_RequestPut:
			a, err := k.put(op, o.RequestPut)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: a}
		case *pb.RequestOp_RequestDeleteRange:
			a, err := k.deleteRange(o.RequestDeleteRange)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: a}
		case *pb.RequestOp_RequestTxn:
			a, err := k.run(&nested[0])
			if err != nil {
				return nil, err
			}
			nested = nested[1:]
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: a}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp, nil
}

// reached is the revision that the transaction has come to: its own from its first change on.
func (k *look) reached() int64 {
	if k.place > 0 {
		return k.rev
	}
	return k.rev - 1
}

// readAs says whether keys are read with their values, which may be on disk.
type readAs bool

const (
	keysOnly   readAs = true
	withValues readAs = false
)

// before returns the keys in span as they are before the transaction.
func (k *look) before(span keys.Span, as readAs) ([]*mvccpb.KeyValue, error) {
	if span.Empty() {
		return nil, nil
	}
	resp, err := k.l.rangeKeys(k.ctx, &pb.RangeRequest{
		Key: span.Start, RangeEnd: span.RangeEnd(), KeysOnly: bool(as),
	})
	return resp.GetKvs(), err
}

// now returns the keys in span, in order, as the transaction has left them so far.
func (k *look) now(span keys.Span, as readAs) ([]*mvccpb.KeyValue, error) {
	kvs, err := k.before(span, as)
	if err != nil || !k.changed(span) {
		return kvs, err
	}
	kvs = slices.DeleteFunc(slices.Clone(kvs), func(kv *mvccpb.KeyValue) bool {
		_, own := k.own.Get(string(kv.Key))
		return own
	})
	k.eachOwn(span, func(o *own) bool {
		if err = k.complete(o); err == nil && o.kv != nil {
			kvs = append(kvs, o.kv)
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return kvs, nil
}

// changed reports whether the transaction has changed a key in span.
func (k *look) changed(span keys.Span) (changed bool) {
	k.eachOwn(span, func(*own) bool {
		changed = true
		return false
	})
	return changed
}

// eachOwn calls fn for what the transaction has made of each key in span that it has changed,
// until fn returns false.
func (k *look) eachOwn(span keys.Span, fn func(*own) bool) {
	k.own.Ascend(string(span.Start), func(key string, o *own) bool {
		return span.Contains([]byte(key)) && fn(o)
	})
}

// complete finds out what the put of a key has made of it.
func (k *look) complete(o *own) error {
	if o.put == nil {
		return nil
	}
	old, err := k.before(keys.Point(o.put.Key), withValues)
	if err == nil {
		o.kv, o.put = k.written(o.put, old), nil
	}
	return err
}

// written returns what a put makes of a key that was old, which has one version or none.
func (k *look) written(req *pb.PutRequest, old []*mvccpb.KeyValue) *mvccpb.KeyValue {
	kv := &mvccpb.KeyValue{
		Key: req.Key, Value: req.Value, Lease: req.Lease, CreateRevision: k.rev, ModRevision: k.rev, Version: 1,
	}
	if len(old) == 0 {
		return kv
	}
	kv.CreateRevision, kv.Version = old[0].CreateRevision, old[0].Version+1
	if req.IgnoreValue {
		kv.Value = old[0].Value
	}
	if req.IgnoreLease {
		kv.Lease = old[0].Lease
	}
	return kv
}

func (k *look) rangeKeys(req *pb.RangeRequest) (*pb.RangeResponse, error) {
	span := keys.FromRange(req.Key, req.RangeEnd)
	switch {
	case span.Empty():
		return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: k.reached()}}, nil
	case req.Revision <= 0 && k.changed(span):
		kvs, err := k.now(span, withValues)
		if err != nil {
			return nil, err
		}
		return mvcc.RangeOver(k.ctx, kvs, k.reached(), req)
	}
	resp, err := k.l.rangeKeys(k.ctx, req)
	if err == nil {
		resp.Header.Revision = k.reached()
	}
	return resp, err
}

func (k *look) put(op *pb.RequestOp, req *pb.PutRequest) (*pb.PutResponse, error) {
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: k.rev}}
	made := &own{put: req}
	if point := keys.Point(req.Key); req.PrevKv || k.changed(point) {
		old, err := k.now(point, withValues)
		if err != nil {
			return nil, err
		}
		made.kv, made.put = k.written(req, old), nil
		if req.PrevKv && len(old) > 0 {
			resp.PrevKv = old[0]
		}
	}
	var d *shard.Data
	if k.shares != nil {
		var err error
		if d, err = k.l.r.span(keys.Point(req.Key)); err != nil {
			return nil, err
		}
	}
	k.change(d, op, 1)
	k.own.Set(string(req.Key), made)
	return resp, nil
}

func (k *look) deleteRange(req *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{}}
	span := keys.FromRange(req.Key, req.RangeEnd)
	victimsAs := withValues
	if !req.PrevKv || k.rev == unknownRev {
		victimsAs = keysOnly // nobody is told of them, or not yet
	}
	if !span.Empty() {
		parts, err := k.l.r.parts(span)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			victims, err := k.now(p.span, victimsAs)
			if err != nil {
				return nil, err
			}
			if len(victims) == 0 {
				continue
			}
			k.change(p.d, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: p.span.Start, RangeEnd: p.span.RangeEnd()},
			}}, len(victims))
			for _, kv := range victims {
				k.own.Set(string(kv.Key), &own{})
			}
			resp.Deleted += int64(len(victims))
			if req.PrevKv {
				resp.PrevKvs = append(resp.PrevKvs, victims...)
			}
		}
	}
	resp.Header.Revision = k.reached()
	return resp, nil
}

// change notes n changes that an operation makes on a shard.
func (k *look) change(d *shard.Data, op *pb.RequestOp, n int) {
	if k.shares != nil {
		k.shares[d] = append(k.shares[d], mvcc.Placed{Place: k.place, Op: op})
	}
	k.place += uint32(n)
}

// outcome is what a look has found.
type outcome struct {
	decision commit.Decision
	// answer runs the transaction once more, at the revision that it got.
	answer func(rev int64) (*pb.TxnResponse, error)
}

// startLook begins a look of a transaction with a revision, below which nothing of the view
// changes any more.
func (l *view) startLook(ctx context.Context, rev int64) *look {
	l.rev = rev - 1
	for _, v := range l.views {
		_ = v.At(l.rev) // it is not below what the view holds
	}
	return &look{ctx: ctx, l: l, rev: rev}
}

// look finds out what a transaction does whose keys are held on all its shards. The view is of
// those, and must stay open for the answer.
func (l *view) look(ctx context.Context, req *pb.TxnRequest, missing map[int64]bool) (o outcome, err error) {
	k := l.startLook(ctx, unknownRev)
	k.missing, k.shares = missing, make(map[*shard.Data][]mvcc.Placed)
	p, err := k.plan(req)
	if err != nil {
		return o, err
	}
	if err := k.check(&p); err != nil {
		return o, err
	}
	if _, err := k.run(&p); err != nil {
		return o, err
	}
	o.decision.Lowest, o.decision.Highest = k.lowest, k.highest
	for _, v := range l.views {
		o.decision.Shares = append(o.decision.Shares, commit.Share{ShardID: v.d.Replica().ShardID(), Ops: commit.EncodeOps(k.shares[v.d])})
	}
	o.answer = func(rev int64) (*pb.TxnResponse, error) {
		resp, err := l.startLook(ctx, rev).run(&p)
		if err == nil {
			resp.Header.Revision = rev
		}
		return resp, err
	}
	return o, nil
}

// lookOnly answers a transaction that names no key to write, though it has operations that
// would. The view is as new as a read's.
func (l *view) lookOnly(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	rev := l.rev
	k := l.startLook(ctx, rev+1)
	k.newest = rev
	p, err := k.plan(req)
	if err != nil {
		return nil, err
	}
	if err := k.check(&p); err != nil {
		return nil, err
	}
	resp, err := k.run(&p)
	if err == nil {
		resp.Header.Revision = rev
	}
	return resp, err
}
