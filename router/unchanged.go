package router

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/shard"
)

// Where several shards share the order of revisions each command takes a number of it,
// whether or not it changes anything. A request that may write, and that as far as this node
// knows does not, is made as a read first. What it answers is proved like any read's, and it
// took place as one; if it would write after all it goes through the log.

// unchangedTxn answers a transaction that takes a path without writes. compares evaluates what
// it compares on what this node has, if that can be read. done is false if it has to go through
// the log.
func (r *Router) unchangedTxn(
	ctx context.Context, req *pb.TxnRequest, check func(access) error,
	compares func(context.Context, *pb.TxnRequest) (succeeds, known bool),
) (resp *pb.TxnResponse, done bool, err error) {
	succeeds, known := compares(ctx, req)
	if !known {
		return nil, false, nil // whatever is in the way, the command meets it too
	}
	path := &pb.TxnRequest{Compare: req.Compare}
	if succeeds {
		path.Success = req.Success
	} else {
		path.Failure = req.Failure
	}
	if writes(path) {
		return nil, false, nil
	}
	resp, err = r.readTxn(ctx, path, fresh{}, check)
	if err == nil && resp.Succeeded != succeeds {
		return nil, false, nil
	}
	return resp, true, err
}

// comparesIn returns what evaluates compares on what this node has of d, which owns all keys.
func comparesIn(d *shard.Data) func(context.Context, *pb.TxnRequest) (succeeds, known bool) {
	return func(ctx context.Context, req *pb.TxnRequest) (succeeds, known bool) {
		if !d.Shape().Ordered {
			return false, false
		}
		v := d.Store().View()
		defer v.Close()
		resp, err := v.Txn(ctx, &pb.TxnRequest{Compare: req.Compare})
		return resp.GetSucceeded(), err == nil
	}
}

// compares evaluates what the transaction compares on what this node has of its shards, each as
// it is.
func (t *wide) compares(ctx context.Context, req *pb.TxnRequest) (succeeds, known bool) {
	l := t.open()
	defer l.close()
	p, err := l.startLook(ctx, unknownRev).plan(&pb.TxnRequest{Compare: req.Compare})
	return p.succeeded, err == nil
}

// unchangedDelete answers a deletion that finds no keys. done is false if it has to go through
// the log.
func (r *Router) unchangedDelete(
	ctx context.Context, req *pb.DeleteRangeRequest, check func(access) error,
) (resp *pb.DeleteRangeResponse, done bool, err error) {
	span := keys.FromRange(req.Key, req.RangeEnd)
	if !r.absent(ctx, span) {
		return nil, false, nil
	}
	count := &pb.RangeRequest{Key: req.Key, RangeEnd: req.RangeEnd, CountOnly: true}
	var found *pb.RangeResponse
	err = r.readAt(ctx, []keys.Span{span}, fresh{}, check, func(l *view) error {
		found, err = l.rangeKeys(ctx, count)
		return err
	})
	if err != nil {
		return nil, true, err
	}
	if found.Count > 0 {
		return nil, false, nil
	}
	r.noteShown(found.Header)
	return &pb.DeleteRangeResponse{Header: found.Header}, true, nil
}

// absent reports whether this node knows no key of a span, where shards are ordered.
func (r *Router) absent(ctx context.Context, span keys.Span) bool {
	if d, err := r.whole(); err == nil && !d.Shape().Ordered {
		return false
	}
	parts, err := r.parts(span)
	if err != nil {
		return false
	}
	for _, p := range parts {
		if !absentIn(ctx, p) {
			return false
		}
	}
	return true
}

// absentIn reports whether this node knows no key of a part.
func absentIn(ctx context.Context, p part) bool {
	v := p.d.Store().View()
	defer v.Close()
	found, err := v.Range(ctx, &pb.RangeRequest{Key: p.span.Start, RangeEnd: p.span.RangeEnd(), CountOnly: true})
	return err == nil && found.Count == 0
}
