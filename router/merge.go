package router

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
)

// rangeKeys answers a range request from the view, as one store would that held the
// keys of all its shards.
func (l *view) rangeKeys(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if v := l.only(); v != nil {
		return v.Range(ctx, req)
	}
	parts, err := l.r.parts(keys.FromRange(req.Key, req.RangeEnd))
	if err != nil {
		return nil, err
	}
	if len(parts) == 1 {
		return l.ofShard(parts[0].d).Range(ctx, req)
	}
	m := merger{ctx: ctx, l: l, req: req, parts: parts}
	return m.run()
}

// merger puts the answer to a range request together from those of several shards.
type merger struct {
	ctx   context.Context //nolint:containedctx // lives for one call
	l     *view
	req   *pb.RangeRequest
	parts []part

	kvs   []*mvccpb.KeyValue
	count int64
	more  bool
}

func (m *merger) run() (*pb.RangeResponse, error) {
	if m.req.SortTarget == pb.RangeRequest_KEY && m.req.SortOrder == pb.RangeRequest_DESCEND {
		slices.Reverse(m.parts)
	}
	for _, p := range m.parts {
		if err := m.add(p); err != nil {
			return nil, err
		}
	}
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: m.l.rev}, Count: m.count}
	if m.req.CountOnly {
		return resp, nil
	}
	m.sort()
	if limit := m.req.Limit; limit > 0 && int64(len(m.kvs)) > limit {
		m.kvs, m.more = m.kvs[:limit], true
	}
	resp.More, resp.Kvs = m.more, m.kvs
	m.strip()
	return resp, nil
}

// add adds the answer of one shard. Answers hold no more than the whole may need: an
// ordered one its own first keys, one in key order what is left of the limit and one
// more, which etcd sorts then even where no order was asked for.
func (m *merger) add(p part) error {
	sub := &pb.RangeRequest{
		Key: p.span.Start, RangeEnd: p.span.RangeEnd(), Revision: m.req.Revision, Limit: m.req.Limit,
		SortOrder: m.req.SortOrder, SortTarget: m.req.SortTarget,
		KeysOnly: m.req.KeysOnly && !m.byValue(), CountOnly: m.req.CountOnly,
		MinModRevision: m.req.MinModRevision, MaxModRevision: m.req.MaxModRevision,
		MinCreateRevision: m.req.MinCreateRevision, MaxCreateRevision: m.req.MaxCreateRevision,
	}
	if mvcc.InKeyOrder(m.req) && m.req.Limit > 0 {
		sub.SortOrder, sub.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
		if sub.Limit -= int64(len(m.kvs)); sub.Limit < math.MaxInt64 {
			sub.Limit++
		}
		sub.CountOnly = m.req.CountOnly || sub.Limit <= 0
	}
	resp, err := m.l.ofShard(p.d).Range(m.ctx, sub)
	if err != nil {
		return err
	}
	m.count += resp.Count
	m.kvs = append(m.kvs, resp.Kvs...)
	m.more = m.more || resp.More
	return nil
}

func (m *merger) byValue() bool { return m.req.SortTarget == pb.RangeRequest_VALUE }

// sort orders the keys of all shards, which come in the order of the request's key
// order. Equal ones stay in it.
func (m *merger) sort() {
	var compare func(a, b *mvccpb.KeyValue) int
	switch m.req.SortTarget {
	case pb.RangeRequest_KEY:
		return
	case pb.RangeRequest_VERSION:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		compare = func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	default:
		return
	}
	if m.req.SortOrder == pb.RangeRequest_DESCEND {
		ascending := compare
		compare = func(a, b *mvccpb.KeyValue) int { return ascending(b, a) }
	}
	slices.SortStableFunc(m.kvs, compare)
}

// strip takes out the values that were needed only for sorting.
func (m *merger) strip() {
	if !m.req.KeysOnly || !m.byValue() {
		return
	}
	for _, kv := range m.kvs {
		kv.Value = nil
	}
}

// txn answers a transaction that only reads.
func (l *view) txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if v := l.only(); v != nil && !v.Past() {
		return v.Txn(ctx, req)
	}
	resp, err := l.branch(ctx, req)
	if err != nil {
		return nil, err
	}
	resp.Header.Revision = l.rev
	return resp, nil
}

// branch answers a transaction that only reads, but for its header, which one that is
// nested in another has none of.
func (l *view) branch(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	holds, err := l.compare(ctx, req.Compare)
	if err != nil {
		return nil, err
	}
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: holds}
	ops := req.Success
	if !holds {
		ops = req.Failure
	}
	for _, op := range ops {
		out := &pb.ResponseOp{}
		if nested := op.GetRequestTxn(); nested != nil {
			answer, err := l.branch(ctx, nested)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: answer}
		} else {
			answer, err := l.txnRange(ctx, op.GetRequestRange())
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: answer}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp, nil
}

// txnRange answers a range inside a transaction.
func (l *view) txnRange(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if rev := req.GetRevision(); rev < 0 && rev < l.compacted {
		// Other than outside of a transaction this does not mean the newest.
		return nil, mvcc.ErrCompacted
	}
	return l.rangeKeys(ctx, req)
}

// compare reports whether all compares hold.
func (l *view) compare(ctx context.Context, compares []*pb.Compare) (bool, error) {
	for _, c := range compares {
		found, err := l.rangeKeys(ctx, &pb.RangeRequest{Key: c.Key, RangeEnd: c.RangeEnd})
		if err != nil {
			return false, err
		}
		if !mvcc.Holds(c, found.Kvs) {
			return false, nil
		}
	}
	return true, nil
}

// stream answers a range request in chunks of about maxBytes. Header, more and count
// come with the last one.
func (l *view) stream(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	if v := l.only(); v != nil {
		return v.RangeStream(ctx, req, maxBytes, emit)
	}
	m := merger{ctx: ctx, l: l, req: req}
	var err error
	if m.parts, err = l.r.parts(keys.FromRange(req.Key, req.RangeEnd)); err != nil {
		return err
	}
	if req.CountOnly || !mvcc.InKeyOrder(req) || req.SortTarget != pb.RangeRequest_KEY {
		resp, err := l.rangeKeys(ctx, req)
		if err != nil {
			return err
		}
		return emit(resp)
	}
	return m.stream(maxBytes, emit)
}

// stream hands on the chunks of one shard after the other. So that a slow client
// does not keep anybody from freeing space, a shard is looked at only in its turn.
func (m *merger) stream(maxBytes int, emit func(*pb.RangeResponse) error) error {
	m.l.close()
	sent := int64(0)
	for i, p := range m.parts {
		sub := proto.CloneOf(m.req)
		sub.Key, sub.RangeEnd = p.span.Start, p.span.RangeEnd()
		if m.req.Limit > 0 {
			sub.Limit = m.req.Limit - sent
			sub.CountOnly = sub.Limit == 0
		}
		v := p.d.Store().View()
		if err := v.At(m.l.rev); err != nil {
			v.Close()
			return err
		}
		err := v.RangeStream(m.ctx, sub, maxBytes, func(chunk *pb.RangeResponse) error {
			sent += int64(len(chunk.Kvs))
			if chunk.Header == nil {
				return emit(chunk)
			}
			m.count += chunk.Count
			m.more = m.more || chunk.More || sub.CountOnly && chunk.Count > 0
			if i == len(m.parts)-1 {
				chunk.Count, chunk.More = m.count, m.more
				return emit(chunk)
			}
			if len(chunk.Kvs) == 0 {
				return nil
			}
			return emit(&pb.RangeResponse{Kvs: chunk.Kvs})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
