package mvcc

import (
	"bytes"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// found is the outcome of looking for the versions that a request names.
type found struct {
	// items is in key order, but for answers by creation. It may be scratch of the
	// reader.
	items []*item
	// count is the number of keys in the span, whatever was left out.
	count int
}

// rangeKeys answers a range request whose revision has been checked.
func (r *reader) rangeKeys(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	r.counters.ranges.Add(1)
	f, err := r.find(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: r.rev}, Count: int64(f.count)}
	if req.CountOnly {
		return resp, nil
	}
	if hasFilters(req) {
		f.items = slices.DeleteFunc(f.items, func(it *item) bool { return filtered(req, it) })
	}
	if err := r.sort(ctx, req, f.items); err != nil {
		return nil, err
	}
	if req.Limit > 0 && int64(len(f.items)) > req.Limit {
		f.items = f.items[:req.Limit]
		resp.More = true
	}
	resp.Kvs, err = r.kvs(ctx, req, f.items)
	return resp, err
}

// find looks up the versions in a request's span, as many as rangeKeys needs.
func (r *reader) find(ctx context.Context, req *pb.RangeRequest) (found, error) {
	rev, past := r.at(req)
	if len(req.RangeEnd) == 0 && !past {
		if it := r.get(req.Key); it != nil {
			if req.CountOnly {
				return found{count: 1}, nil
			}
			r.one[0] = it
			return found{items: r.one[:], count: 1}, nil
		}
		return found{}, nil
	}
	span := keys.FromRange(req.Key, req.RangeEnd)
	switch {
	case past:
		return r.findPast(ctx, span, rev, req)
	case req.CountOnly:
		return found{count: r.count(span)}, nil
	case r.byCreation(req, span):
		return found{items: r.firstCreated(span.Start, req), count: r.count(span)}, nil
	}
	return r.findCurrent(ctx, span, rangeLimit(req))
}

// findCurrent looks up the current versions in span, at most limit of them if
// limit is not 0.
func (r *reader) findCurrent(ctx context.Context, span keys.Span, limit int) (found, error) {
	f := found{count: -1}
	if limit == 0 {
		f.count = r.count(span)
		f.items = make([]*item, 0, f.count)
	}
	var err error
	r.ascend(span, func(it *item) bool {
		f.items = append(f.items, it)
		if len(f.items)%ctxInterval == 0 {
			err = ctx.Err()
		}
		return err == nil && len(f.items) != limit
	})
	if err != nil {
		return found{}, err
	}
	if f.count < 0 {
		f.count = len(f.items)
		if f.count == limit {
			f.count = r.count(span)
		}
	}
	return f, nil
}

// ctxInterval is the number of versions handled between two looks at whether
// the caller still waits.
const ctxInterval = 1024

// sort brings items, which are in key order, into the order of req. Equal ones
// stay in key order.
func (r *reader) sort(ctx context.Context, req *pb.RangeRequest, items []*item) error {
	var compare func(a, b *item) int
	switch {
	case len(items) < 2 || req.SortTarget == pb.RangeRequest_KEY && req.SortOrder != pb.RangeRequest_DESCEND:
		return nil
	case req.SortTarget == pb.RangeRequest_KEY:
		slices.Reverse(items)
		return nil
	case req.SortTarget == pb.RangeRequest_VALUE:
		if err := r.hold(ctx, items); err != nil {
			return err
		}
		compare = func(a, b *item) int { return bytes.Compare(a.value, b.value) }
	default:
		compare = keyCompare(req.SortTarget)
	}
	if compare == nil {
		return nil
	}
	if req.SortOrder == pb.RangeRequest_DESCEND {
		ascending := compare
		compare = func(a, b *item) int { return ascending(b, a) }
	}
	slices.SortStableFunc(items, compare)
	return nil
}

// hold puts copies that have their values in place of items.
func (r *reader) hold(ctx context.Context, items []*item) error {
	values, err := r.values(ctx, items)
	if err != nil {
		return err
	}
	held := make([]item, len(items))
	for i, it := range items {
		held[i] = *it
		held[i].value = values[i]
		items[i] = &held[i]
	}
	return nil
}

// kvs turns items into what the request wants to see of them.
func (r *reader) kvs(ctx context.Context, req *pb.RangeRequest, items []*item) ([]*mvccpb.KeyValue, error) {
	if len(items) == 0 {
		return nil, nil
	}
	// keys_only leaves out the lease too, unless the answer was sorted by the
	// values: etcd then has read whole versions.
	bare := req.KeysOnly && req.SortTarget != pb.RangeRequest_VALUE
	all := make([]mvccpb.KeyValue, len(items))
	out := make([]*mvccpb.KeyValue, len(items))
	for i, it := range items {
		kv := &all[i]
		out[i] = kv
		it.fill(kv)
		if bare {
			kv.Lease = 0
		}
	}
	if req.KeysOnly {
		return out, nil
	}
	values, err := r.values(ctx, items)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		out[i].Value = v
	}
	return out, nil
}
