package router

import (
	"context"
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
	d, err := r.readable(ctx, req)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.users.Read(a.id, req.Key, req.RangeEnd); err != nil {
		return nil, err
	}
	err = a.view(d, func(v *mvcc.View) error {
		resp, err = v.Range(ctx, req)
		return err
	})
	return resp, err
}

// RangeStream answers a range request in chunks of about maxBytes, all of one
// revision.
func (r *Router) RangeStream(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	d, err := r.readable(ctx, req)
	if err != nil {
		return err
	}
	a, err := r.access(ctx)
	if err != nil {
		return err
	}
	if err := a.users.Read(a.id, req.Key, req.RangeEnd); err != nil {
		return err
	}
	v := d.Store().View()
	defer v.Close()
	if err := a.holds(d); err != nil {
		return err
	}
	return v.RangeStream(ctx, req, maxBytes, emit)
}

// readable returns the shard of the range once a read of it is as fresh as the
// request wants.
func (r *Router) readable(ctx context.Context, req *pb.RangeRequest) (*shard.Data, error) {
	d, err := r.span(keys.FromRange(req.Key, req.RangeEnd))
	if err != nil || req.Serializable {
		return d, err
	}
	return d, r.confirm(ctx, d)
}

// view calls fn with the newest state of d, of which nothing counts if the sender's
// rights have changed by then.
func (a access) view(d *shard.Data, fn func(*mvcc.View) error) error {
	err := view(d, fn)
	if changed := a.holds(d); changed != nil {
		return changed
	}
	return err
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
	return write[*pb.PutResponse](ctx, r, d, a.command(shard.KindPut, req, leases...))
}

// DeleteRange deletes the keys of a range.
func (r *Router) DeleteRange(ctx context.Context, req *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	d, err := r.span(keys.FromRange(req.Key, req.RangeEnd))
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.users.DeleteRange(a.id, req); err != nil {
		return nil, err
	}
	return write[*pb.DeleteRangeResponse](ctx, r, d, a.command(shard.KindDeleteRange, req))
}

// Txn runs a transaction.
func (r *Router) Txn(ctx context.Context, req *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	d, err := r.txnShard(req)
	if err != nil {
		return nil, err
	}
	reads, serializable := readOnly(req)
	if reads && !serializable {
		if err := r.confirm(ctx, d); err != nil {
			return nil, err
		}
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.users.Txn(a.id, req); err != nil {
		return nil, err
	}
	if !reads {
		return write[*pb.TxnResponse](ctx, r, d, a.command(shard.KindTxn, req, auth.Leases(req)...))
	}
	err = a.view(d, func(v *mvcc.View) error {
		resp, err = v.Txn(ctx, req)
		return err
	})
	return resp, err
}

// txnShard returns the shard that owns every key that the transaction names.
func (r *Router) txnShard(req *pb.TxnRequest) (d *shard.Data, err error) {
	mvcc.EachSpan(req, func(s keys.Span, _ bool) bool {
		var owner *shard.Data
		owner, err = r.span(s)
		if err == nil && d != nil && d != owner {
			err = ErrSeveralShards
		}
		d = owner
		return err == nil
	})
	if d == nil && err == nil {
		return r.whole()
	}
	return d, err
}

// readOnly reports whether the transaction only reads, and whether all of its
// reads are serializable. As in etcd a nested transaction counts as a write.
func readOnly(req *pb.TxnRequest) (reads, serializable bool) {
	serializable = true
	for _, branch := range [][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range branch {
			o, ok := op.Request.(*pb.RequestOp_RequestRange)
			if !ok {
				return false, false
			}
			serializable = serializable && o.RequestRange.GetSerializable()
		}
	}
	return true, serializable
}

// Compact drops history below a revision. A physical compaction is answered once
// the space of what is gone could be freed.
func (r *Router) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	d, err := r.whole()
	if err != nil {
		return nil, err
	}
	resp, err := write[*pb.CompactionResponse](ctx, r, d, command{kind: shard.KindCompact, request: req})
	if err != nil || !req.Physical {
		return resp, err
	}
	return resp, d.AwaitSwept(ctx, req.Revision)
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
func write[Response any](ctx context.Context, r *Router, d *shard.Data, c command) (resp Response, err error) {
	err = r.atLeader(ctx, d, func(ctx context.Context) error {
		var result any
		var err error
		if c.guard != nil {
			result, err = d.WriteGuarded(ctx, c.guard, c.kind, c.request)
		} else {
			result, err = d.Write(ctx, c.kind, c.request)
		}
		if err != nil {
			return c.access.refused(err)
		}
		var ok bool
		if resp, ok = result.(Response); !ok {
			return fmt.Errorf("router: command answered %T", result)
		}
		return nil
	})
	return resp, err
}
