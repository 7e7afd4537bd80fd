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

// unchangedTxn answers a transaction for keys of d that takes a path without writes. done is
// false if it has to go through the log.
func (r *Router) unchangedTxn(
	ctx context.Context, d *shard.Data, req *pb.TxnRequest, check func(access) error,
) (resp *pb.TxnResponse, done bool, err error) {
	if !d.Shape().Ordered {
		return nil, false, nil
	}
	succeeds, known := compares(ctx, d, req)
	if !known {
		return nil, false, nil // whatever is in the way, the command meets it too
	}
	path := &pb.TxnRequest{Compare: req.Compare}
	if succeeds {
		path.Success = req.Success
	} else {
		path.Failure = req.Failure
	}
	if reads, _ := readOnly(path); !reads {
		return nil, false, nil
	}
	resp, err = r.readTxn(ctx, path, fresh{}, check)
	if err == nil && resp.Succeeded != succeeds {
		return nil, false, nil
	}
	return resp, true, err
}

// compares evaluates what a transaction compares on what this node has of d, if it can be
// read.
func compares(ctx context.Context, d *shard.Data, req *pb.TxnRequest) (succeeds, known bool) {
	v := d.Store().View()
	defer v.Close()
	resp, err := v.Txn(ctx, &pb.TxnRequest{Compare: req.Compare})
	return resp.GetSucceeded(), err == nil
}

// unchangedDelete answers a deletion of keys of d that finds none. done is false if it has to
// go through the log.
func (r *Router) unchangedDelete(
	ctx context.Context, d *shard.Data, req *pb.DeleteRangeRequest, check func(access) error,
) (resp *pb.DeleteRangeResponse, done bool, err error) {
	count := &pb.RangeRequest{Key: req.Key, RangeEnd: req.RangeEnd, CountOnly: true}
	if !d.Shape().Ordered || !absent(ctx, d, count) {
		return nil, false, nil
	}
	var found *pb.RangeResponse
	err = r.readAt(ctx, []keys.Span{keys.FromRange(req.Key, req.RangeEnd)}, fresh{}, check, func(l *view) error {
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

// absent reports whether this node knows no key of a range in d.
func absent(ctx context.Context, d *shard.Data, count *pb.RangeRequest) bool {
	v := d.Store().View()
	defer v.Close()
	found, err := v.Range(ctx, count)
	return err == nil && found.Count == 0
}
