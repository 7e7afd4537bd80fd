package router

import (
	"context"
	"errors"
	"slices"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/share"
	"github.com/latchkey-db/latchkey/shard"
)

// proofs are what calls on this node ask the leader of a shard together. Confirmations and
// promises are shared where another node leads; else the shard itself sees to that.
type proofs struct {
	confirm share.Share[struct{}, struct{}]
	promise share.Share[promise, struct{}]
	// newest is shared wherever the leader is.
	newest share.Share[spans, newest]
}

// promise is what is asked of a leader: that nothing more comes up to a revision in some
// spans.
type promise struct {
	rev   int64
	reads spans
}

// spans are keys that calls read, all where of is nil.
type spans struct {
	of []keys.Span
	// joined says that no caller has them.
	joined bool
}

// with returns the keys of both.
func (s spans) with(other spans) spans {
	if s.of == nil || other.of == nil {
		return spans{}
	}
	if !s.joined {
		s = spans{slices.Clone(s.of), true}
	}
	s.of = append(s.of, other.of...)
	return s
}

// newest is that a replica of this node lacks nothing of some keys up to the oracle's
// newest number.
type newest struct {
	now raft.Block
	// begun is what remains for each call to wait for, nil where that was done for all.
	begun *raft.Promised
}

func newProofs(r *Router, d *shard.Data) *proofs {
	p := &proofs{}
	p.confirm.Go, p.promise.Go, p.newest.Go = r.running.run, r.running.run, r.running.run
	p.confirm.Join = share.Same[struct{}]
	p.confirm.Ask = func(ctx context.Context, _ struct{}) (none struct{}, err error) { return none, r.confirmOnce(ctx, d) }
	p.promise.Join = func(a, b promise) promise { return promise{max(a.rev, b.rev), a.reads.with(b.reads)} }
	p.promise.Ask = func(ctx context.Context, q promise) (none struct{}, err error) {
		return none, r.promisedOnce(ctx, d, q)
	}
	p.newest.Join = spans.with
	p.newest.Ask = func(ctx context.Context, q spans) (newest, error) { return r.newestOnce(ctx, d, q.of) }
	return p
}

// elsewhere returns what calls share to ask the leader of d, nil if this node may be that.
func (r *Router) elsewhere(d *shard.Data) *proofs {
	if r.leaders == nil || d.Replica().Serving() != 0 {
		return nil
	}
	return r.proofs[d.Replica().ShardID()]
}

// confirm proves that what this node has applied of d is the newest.
func (r *Router) confirm(ctx context.Context, d *shard.Data) error {
	p := r.elsewhere(d)
	if p == nil {
		return r.confirmOnce(ctx, d)
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	_, err := p.confirm.Get(ctx, struct{}{})
	return err
}

func (r *Router) confirmOnce(ctx context.Context, d *shard.Data) error {
	return r.upTo(ctx, d, func(ctx context.Context, l Leader) (uint64, error) { return l.Confirm(ctx) })
}

// promised returns when this node's replica of d holds every change to the given keys
// up to revision rev, an issued one, that there will ever be; of all keys where reads
// is nil, which the store hears of.
func (r *Router) promised(ctx context.Context, d *shard.Data, rev int64, reads []keys.Span) (err error) {
	if reads == nil && d.Store().Resolved() >= rev {
		return nil
	}
	q := promise{rev, spans{of: reads}}
	if p := r.elsewhere(d); p == nil {
		err = r.promisedOnce(ctx, d, q)
	} else {
		ctx, cancel := r.bounded(ctx)
		defer cancel()
		_, err = p.promise.Get(ctx, q)
	}
	if err == nil && reads == nil {
		d.Store().Resolve(rev)
	}
	return err
}

func (r *Router) promisedOnce(ctx context.Context, d *shard.Data, q promise) error {
	return r.upTo(ctx, d, func(ctx context.Context, l Leader) (uint64, error) { return l.Promise(ctx, q.rev, q.reads.of) })
}

// newestNumber asks the oracle for the newest number, together with other calls where it
// is on another node.
func (r *Router) newestNumber(ctx context.Context) (raft.Block, error) {
	if r.order.IsOracle() {
		return r.order.Newest(ctx)
	}
	return r.newest.Get(ctx, struct{}{})
}

// newestOf returns the oracle's newest number when this node's replica holds every change
// up to it of what is read that there will ever be. Calls share the number and the proof.
func (r *Router) newestOf(ctx context.Context, read reading) (raft.Block, error) {
	n, err := r.proofs[read.d.Replica().ShardID()].newest.Get(ctx, spans{of: read.spans})
	if err != nil || n.begun == nil {
		return n.now, err
	}
	// Nobody waits for what only others read.
	if _, err = n.begun.Of(ctx, read.spans); errors.Is(err, raft.ErrNotLeader) {
		err = errMoved
	}
	return n.now, err
}

func (r *Router) newestOnce(ctx context.Context, d *shard.Data, reads []keys.Span) (n newest, err error) {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	if n.now, err = r.newestNumber(ctx); err != nil {
		return n, err
	}
	err = r.upTo(ctx, d, func(ctx context.Context, l Leader) (index uint64, err error) {
		if here, ok := l.(*shard.Data); ok {
			n.begun, err = here.BeginPromise(ctx, n.now.Newest)
			return 0, err
		}
		n.begun = nil
		return l.Promise(ctx, n.now.Newest, reads)
	})
	return n, err
}
