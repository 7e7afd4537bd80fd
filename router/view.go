package router

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// Order is the cluster's one order of revisions as the router asks it. Placement
// implements it.
type Order interface {
	// IsOracle reports whether this node hands the numbers out, as far as it knows.
	IsOracle() bool
	// Newest returns the newest number handed out and the compaction revision, both
	// newer than the call.
	Newest(ctx context.Context) (raft.Block, error)
	// Ask hands out numbers once; see raft.Oracle.
	Ask(ctx context.Context, count int, by raft.Leading) (raft.Block, error)
	// Compact makes rev, a revision that was handed out, the compaction revision. It
	// reports false if the compaction revision is as high already.
	Compact(ctx context.Context, rev int64) (bool, error)
}

// part is what one shard owns of a span.
type part struct {
	d    *shard.Data
	span keys.Span
}

// view is the state of some shards at one revision. It must be closed, soon.
type view struct {
	// rev is the revision, which is also the newest that answers know of.
	rev   int64
	views []opened
	// compacted is the compaction revision, -1 before the first compaction.
	compacted int64
	r         *Router
}

// opened is the view of one shard.
type opened struct {
	d *shard.Data
	*mvcc.View
}

// reading is what is to be read of one shard.
type reading struct {
	d     *shard.Data
	spans []keys.Span
}

// fresh says how new a view has to be.
type fresh struct {
	// serializable views need no proof: they show what this node knows, and never
	// less than it has shown.
	serializable bool
	// rev is the one revision that the request is about, 0 for the newest.
	rev int64
}

// parts cuts a span at the borders of the shards.
func (r *Router) parts(s keys.Span) ([]part, error) {
	positions := keys.Positions(s)
	pieces := r.system.State().Map.Locate(positions.Start, positions.End)
	if len(pieces) == 0 {
		return nil, errUnplaced
	}
	parts := make([]part, 0, len(pieces))
	for i, p := range pieces {
		d := r.shards[p.Shard]
		if d == nil {
			return nil, errUnplaced
		}
		cut := s
		if i > 0 {
			cut.Start = keys.AtPosition(p.Start)
		}
		if i+1 < len(pieces) {
			cut.End = keys.AtPosition(pieces[i+1].Start)
		}
		if n := len(parts); n > 0 && parts[n-1].d == d {
			parts[n-1].span.End = cut.End
			continue
		}
		parts = append(parts, part{d, cut})
	}
	return parts, nil
}

// openView opens the keys in spans at one revision. What it shows is every change that
// was acknowledged before the call, unless f wants less.
func (r *Router) openView(ctx context.Context, spans []keys.Span, f fresh) (*view, error) {
	reads, err := r.readings(spans)
	if err != nil {
		return nil, err
	}
	if len(reads) == 0 {
		// A request for no key is answered by whoever owns the first.
		return r.openView(ctx, []keys.Span{keys.Point([]byte{0})}, f)
	}
	for {
		l, err := r.openViewOnce(ctx, reads, f)
		if !errors.Is(err, errMoved) {
			return l, err
		}
	}
}

// readings sorts the spans by the shards that own them.
func (r *Router) readings(spans []keys.Span) ([]reading, error) {
	if d, err := r.whole(); err == nil && len(spans) > 0 {
		return []reading{{d, spans}}, nil
	}
	var reads []reading
	for _, s := range spans {
		parts, err := r.parts(s)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			at := slices.IndexFunc(reads, func(read reading) bool { return read.d == p.d })
			if at < 0 {
				at, reads = len(reads), append(reads, reading{d: p.d})
			}
			reads[at].spans = append(reads[at].spans, p.span)
		}
	}
	return reads, nil
}

// errMoved says that the shards have moved on under a view.
var errMoved = errors.New("the shards have moved on")

func (r *Router) openViewOnce(ctx context.Context, reads []reading, f fresh) (*view, error) {
	if len(reads) == 1 && !reads[0].d.Shape().Ordered {
		return r.openAlone(ctx, reads[0].d, f)
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	if f.serializable {
		l, err := r.openResolved(ctx, reads, f.rev)
		if l != nil || err != nil {
			return l, err
		}
	}
	if len(reads) == 1 && f.rev == 0 {
		now, err := r.newestOf(ctx, reads[0])
		if err != nil {
			return nil, err
		}
		return r.open(ctx, reads, now.Newest, now.Compacted)
	}
	now, err := r.newestNumber(ctx)
	if err != nil {
		return nil, err
	}
	target := now.Newest
	switch {
	case f.rev > now.Newest:
		return nil, mvcc.ErrFutureRev
	case f.rev > 0 && f.rev < now.Compacted:
		return nil, mvcc.ErrCompacted
	case f.rev > 0:
		target = f.rev
	}
	if err := r.promise(ctx, reads, target); err != nil {
		return nil, err
	}
	return r.open(ctx, reads, now.Newest, now.Compacted)
}

// openAlone opens the one shard of a cluster that counts by itself. A replica that is
// behind what clients have seen from this node is no help to serializable views either.
func (r *Router) openAlone(ctx context.Context, d *shard.Data, f fresh) (*view, error) {
	if f.serializable {
		if err := r.recovered(ctx, d); err != nil {
			return nil, err
		}
	}
	if !f.serializable || d.Store().Rev() < r.shown.Load() {
		if err := r.confirm(ctx, d); err != nil {
			return nil, err
		}
	}
	v := d.Store().View()
	if d.Shape().Ordered {
		v.Close()
		return nil, errMoved
	}
	return &view{rev: v.Rev(), compacted: v.Compacted(), views: []opened{{d, v}}, r: r}, nil
}

// recovered waits until this node's replica of d shows no less than it did before its process
// was started anew.
func (r *Router) recovered(ctx context.Context, d *shard.Data) error {
	if d.Replica().Recovered() {
		return nil
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	return d.Replica().AwaitRecovered(ctx)
}

// openResolved opens the shards at a revision that this node knows to be resolved in all
// of them, or nothing if it knows of none that would do.
func (r *Router) openResolved(ctx context.Context, reads []reading, rev int64) (*view, error) {
	for _, read := range reads {
		if err := r.recovered(ctx, read.d); err != nil {
			return nil, err
		}
	}
	known := r.shown.Load()
	if rev > known {
		return nil, nil
	}
	resolved := int64(-1)
	for _, read := range reads {
		if at := read.d.Store().ResolvedOf(read.spans...); resolved < 0 || at < resolved {
			resolved = at
		}
	}
	if resolved < known {
		switch err := r.promiseLed(ctx, reads, known); {
		case err == nil:
			resolved = known
		case !errors.Is(err, errNoLeader):
			return nil, err
		case rev > resolved:
			return nil, raft.ErrTimeout
		}
	}
	compacted := r.system.State().Order.Compacted
	if rev > 0 && rev < compacted {
		return nil, mvcc.ErrCompacted
	}
	l, err := r.open(ctx, reads, resolved, compacted)
	if errors.Is(err, errMoved) {
		return nil, nil // a shard has swept what another has not reached
	}
	return l, err
}

// errNoLeader says that a shard has had no leader for a while, as on a node that has lost its
// majority. It is served what the node holds of it, or nothing.
var errNoLeader = errors.New("a shard has no leader")

// awaitLed waits until the shards of reads have leaders, for a third of what a call may
// take.
func (r *Router) awaitLed(ctx context.Context, reads []reading) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout/3, errNoLeader)
	defer cancel()
	for _, read := range reads {
		if err := read.d.Replica().AwaitLeader(ctx); err != nil {
			return err
		}
	}
	return nil
}

// promiseLed is promise for what is not known to be resolved anyhow, if there is anybody to
// promise.
func (r *Router) promiseLed(ctx context.Context, reads []reading, rev int64) error {
	var behind []reading
	for _, read := range reads {
		if read.d.Store().Resolved() < rev {
			behind = append(behind, read)
		}
	}
	if err := r.awaitLed(ctx, behind); err != nil {
		return err
	}
	return r.promise(ctx, behind, rev)
}

// promise has the leaders promise that nothing more comes up to rev in what is read.
func (r *Router) promise(ctx context.Context, reads []reading, rev int64) error {
	if len(reads) == 1 {
		return r.promised(ctx, reads[0].d, rev, reads[0].spans)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, read := range reads {
		g.Go(func() error { return r.promised(ctx, read.d, rev, read.spans) })
	}
	return g.Wait()
}

// open opens views at rev, which has been promised. A single shard is opened at the
// newest that it has: all that is below is there, since numbers apply in order. What
// transactions hold that may have a lower revision is waited for; those that come to hold
// something behind the promise have a higher one.
func (r *Router) open(ctx context.Context, reads []reading, rev, compacted int64) (*view, error) {
	l := &view{rev: rev, compacted: compacted, views: make([]opened, 0, len(reads)), r: r}
	for _, read := range reads {
		v, err := viewOf(ctx, read, rev)
		if err != nil {
			l.close()
			return nil, err
		}
		l.views = append(l.views, opened{read.d, v})
		if len(reads) == 1 {
			l.rev = max(rev, min(v.Rev(), v.HeldFrom(read.spans...)))
		}
		if err := v.At(l.rev); err != nil {
			l.close()
			return nil, errMoved
		}
		v.Forget(compacted)
	}
	return l, nil
}

// viewOf opens the newest state of a shard that lacks nothing of what is read up to rev because
// a transaction holds it.
func viewOf(ctx context.Context, read reading, rev int64) (*mvcc.View, error) {
	store := read.d.Store()
	for {
		v := store.View()
		if v.HeldFrom(read.spans...) >= rev {
			return v, nil
		}
		v.Close()
		err := read.d.AwaitSettled(ctx, func() bool { return store.HeldFrom(read.spans...) >= rev })
		if err != nil {
			return nil, err
		}
	}
}

// close ends the view.
func (l *view) close() {
	for _, v := range l.views {
		v.Close()
	}
}

// only returns the only shard of a view, nil if there are more.
func (l *view) only() *mvcc.View {
	if len(l.views) == 1 {
		return l.views[0].View
	}
	return nil
}

// ofShard returns the view of d, which is one of the view's shards.
func (l *view) ofShard(d *shard.Data) *mvcc.View {
	at := slices.IndexFunc(l.views, func(v opened) bool { return v.d == d })
	return l.views[at].View
}

// noteShown takes note of a revision that clients have seen.
func (r *Router) noteShown(header *pb.ResponseHeader) {
	if header != nil {
		raiseTo(&r.shown, header.Revision)
	}
}

func raiseTo(known *atomic.Int64, rev int64) {
	for {
		old := known.Load()
		if rev <= old || known.CompareAndSwap(old, rev) {
			return
		}
	}
}
