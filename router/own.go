package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// What the server itself asks of the keyspace while it carries out calls of clients.

// RangeInShard answers a range request for keys of one shard, behind a proof of that shard
// alone: no number of the oracle is asked for. It shows every change of the keys that was
// acknowledged before the call. Its revision is that of the shard's state, which is one of the
// whole order, but not always as high as that of the newest change of other shards. The
// request is about the newest state.
func (r *Router) RangeInShard(ctx context.Context, req *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	return r.rangeInShard(ctx, req, r.confirm)
}

// rangeInShard is RangeInShard behind a proof.
func (r *Router) rangeInShard(
	ctx context.Context, req *pb.RangeRequest, prove func(context.Context, *shard.Data) error,
) (resp *pb.RangeResponse, err error) {
	check := func(a access) error { return a.users.Read(a.id, req.Key, req.RangeEnd) }
	span := keys.FromRange(req.Key, req.RangeEnd)
	d, err := r.span(span)
	if err != nil {
		return nil, r.refusal(ctx, check, err)
	}
	for {
		if err := prove(ctx, d); err != nil {
			return nil, err
		}
		// What a transaction holds by now it has perhaps been acknowledged for.
		l, err := r.open(ctx, []reading{{d, []keys.Span{span}}}, d.Store().Rev(), r.system.State().Order.Compacted)
		if err == nil {
			err = r.readIn(ctx, l, check, func(l *view) error {
				resp, err = l.rangeKeys(ctx, req)
				return err
			})
			l.close()
		}
		switch {
		case errors.Is(err, mvcc.ErrReplaced), errors.Is(err, errMoved):
			continue
		case err != nil:
			return nil, err
		}
		r.noteShown(resp.Header)
		return resp, nil
	}
}

// Peek answers a range request from what this node knows, as a serializable read does, at
// revision least or a later one; raft.ErrTimeout says that it could not come to know that.
// Nobody's rights are asked: what comes of it reaches only who has them.
func (r *Router) Peek(ctx context.Context, req *pb.RangeRequest, least int64) (*pb.RangeResponse, error) {
	for {
		resp, err := r.peekOnce(ctx, req, least)
		if !errors.Is(err, mvcc.ErrReplaced) {
			return resp, err
		}
	}
}

func (r *Router) peekOnce(ctx context.Context, req *pb.RangeRequest, least int64) (*pb.RangeResponse, error) {
	span := keys.FromRange(req.Key, req.RangeEnd)
	l, err := r.openView(ctx, []keys.Span{span}, fresh{serializable: true})
	if err != nil {
		return nil, err
	}
	defer l.close()
	if l.rev < least {
		return nil, raft.ErrTimeout
	}
	return l.rangeKeys(ctx, req)
}

// Divided reports whether the keys of a range lie on several shards.
func (r *Router) Divided(key, end []byte) bool {
	at := keys.Positions(keys.FromRange(key, end))
	_, err := r.only(r.system.State().Map.Locate(at.Start, at.End))
	return errors.Is(err, ErrSeveralShards)
}
