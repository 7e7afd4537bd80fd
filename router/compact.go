package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// Compact drops history below a revision. A physical compaction is answered once
// the space of what is gone could be freed.
func (r *Router) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if d, err := r.whole(); err == nil && !d.Shape().Ordered {
		resp, err := r.compactAlone(ctx, d, req)
		switch {
		case errors.Is(err, errMoved):
			// It goes through the order, which is about to begin.
		case err != nil || !req.Physical:
			return resp, err
		default:
			return resp, d.AwaitSwept(ctx, req.Revision)
		}
	}
	resp, err := r.compactAll(ctx, req.Revision)
	if err != nil || !req.Physical {
		return resp, err
	}
	if err := r.SweepTo(ctx, req.Revision); err != nil {
		return nil, err
	}
	for _, d := range r.shards {
		if err := d.AwaitSwept(ctx, req.Revision); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// compactAlone compacts the one shard of a cluster that counts by itself. The shard may
// become an ordered one meanwhile, which takes no such command.
func (r *Router) compactAlone(ctx context.Context, d *shard.Data, req *pb.CompactionRequest) (resp *pb.CompactionResponse, err error) {
	err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		if d.Shape().Ordered {
			return errMoved
		}
		resp, err = writeOnce[*pb.CompactionResponse](ctx, r, l, command{kind: shard.KindCompact, request: req})
		return err
	})
	return resp, err
}

// compactAll makes rev the compaction revision of an ordered cluster.
func (r *Router) compactAll(ctx context.Context, rev int64) (*pb.CompactionResponse, error) {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	now, err := r.newestNumber(ctx)
	if err != nil {
		return nil, err
	}
	if rev > now.Newest {
		return nil, mvcc.ErrFutureRev
	}
	done, err := r.order.Compact(ctx, rev)
	switch {
	case err != nil:
		return nil, err
	case !done:
		return nil, mvcc.ErrCompacted
	}
	resp := &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: now.Newest}}
	r.noteShown(resp.Header)
	return resp, nil
}

// SweepTo makes all shards take over the compaction revision of the cluster, whichever
// nodes lead them.
func (r *Router) SweepTo(ctx context.Context, rev int64) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, d := range r.shards {
		if d.Store().Compacted() >= rev {
			continue
		}
		g.Go(func() error {
			return r.atLeader(ctx, d, func(ctx context.Context, l Leader) error { return l.SweepTo(ctx, rev) })
		})
	}
	return g.Wait()
}
