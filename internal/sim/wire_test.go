package sim

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
)

// call is one call from a node to another, as tests that interfere see it.
type call struct {
	link
	// name is the method's; shard is the shard called, the system shard for the oracle.
	name  string
	shard uint64
	// count is how many numbers are asked for.
	count int
}

// interference is what a test does to one call. Its delays come on top of the
// network's.
type interference struct {
	// refuse has the call not arrive.
	refuse bool
	// before and after are how long the call and its answer take.
	before, after time.Duration
	// forget has the answer not arrive.
	forget bool
	// again is how long after the call it is carried out once more, 0 for never.
	again time.Duration
}

// errLost is what a call hears that did not arrive or was not answered.
var errLost = errors.New("sim: the call was lost")

// carry makes one call to another node. arrived says whether it may have been carried
// out.
func (p *process) carry(ctx context.Context, c call, fn func(context.Context, *process) error) (arrived bool, err error) {
	s := p.node.c
	c.from = p.node.id
	var f interference
	if d := s.interfere.Load(); d != nil {
		f = (*d)(c)
	}
	n := s.net
	if f.refuse || p.dead.Load() || !n.passes(c.link) || n.drawn(func(f faults) int { return f.loseCall }) {
		pause(ctx, s.lostAfter())
		return false, errLost
	}
	if !pause(ctx, s.way()+f.before+n.dawdle()) {
		return false, context.Cause(ctx)
	}
	to := s.nodes[c.to-1].running()
	if to == nil || !to.enter() {
		pause(ctx, s.lostAfter())
		return false, errLost
	}
	err = fn(ctx, to)
	to.leave()
	if f.again > 0 {
		s.wg.Go(func() {
			if pause(s.ctx, f.again) && to.enter() {
				_ = fn(s.ctx, to)
				to.leave()
			}
		})
	}
	if f.forget || to.dead.Load() || p.dead.Load() || !n.passes(link{c.to, c.from}) || n.drawn(func(f faults) int { return f.loseAnswer }) {
		pause(ctx, s.lostAfter())
		return true, errLost
	}
	if !pause(ctx, s.way()+f.after+n.dawdle()) {
		return true, context.Cause(ctx)
	}
	return true, err
}

// pause waits and reports whether ctx lasted.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Leader returns the leader of a data shard on another node, as this node knows it.
func (p *process) Leader(shardID uint64) router.Leader {
	d := p.shards[shardID]
	if d == nil {
		return nil
	}
	to := d.Replica().Leader().ReplicaID
	if to == 0 || to == p.node.id {
		return nil
	}
	return &remote{p: p, to: to, shard: shardID}
}

// remote is a leader on another node. Replica ids are those of nodes.
type remote struct {
	p         *process
	to, shard uint64
}

// call calls the leader. What may be made again is, if it was lost; the outcome of the
// rest is unknown.
func (r *remote) call(ctx context.Context, name string, again bool, fn func(context.Context, *shard.Data) error) error {
	arrived, err := r.p.carry(ctx, call{link: link{to: r.to}, name: name, shard: r.shard}, func(ctx context.Context, to *process) error {
		return fn(ctx, to.shards[r.shard])
	})
	switch {
	case errors.Is(err, errLost) && (again || !arrived):
		return shard.ErrNotLeader
	case errors.Is(err, errLost), errors.Is(err, shard.ErrStopped):
		return shard.ErrTimeout
	default:
		return err
	}
}

func (r *remote) Write(ctx context.Context, kind shard.Kind, request proto.Message) (any, error) {
	return r.WriteGuarded(ctx, nil, kind, request)
}

func (r *remote) WriteGuarded(ctx context.Context, g *shard.Guard, kind shard.Kind, request proto.Message) (any, error) {
	return r.p.shards[r.shard].WriteElsewhere(ctx, g, kind, request, func(ctx context.Context, s shard.Sent) error {
		frame := s.Append(nil)
		return r.call(ctx, "Write", false, func(ctx context.Context, d *shard.Data) error {
			sent, err := shard.CutSent(frame)
			if err != nil {
				return err
			}
			return d.Carry(ctx, sent)
		})
	})
}

func (r *remote) Confirm(ctx context.Context) (index uint64, err error) {
	err = r.call(ctx, "Confirm", true, func(ctx context.Context, d *shard.Data) (err error) {
		index, err = d.Confirm(ctx)
		return err
	})
	return index, err
}

func (r *remote) Promise(ctx context.Context, rev int64, reads []keys.Span) (index uint64, err error) {
	err = r.call(ctx, "Promise", true, func(ctx context.Context, d *shard.Data) (err error) {
		index, err = d.Promise(ctx, rev, reads)
		return err
	})
	return index, err
}

func (r *remote) Raise(ctx context.Context, f shard.Fence) (index uint64, err error) {
	err = r.call(ctx, "Raise", true, func(ctx context.Context, d *shard.Data) (err error) {
		index, err = d.Raise(ctx, f)
		return err
	})
	return index, err
}

func (r *remote) SweepTo(ctx context.Context, rev int64) error {
	return r.call(ctx, "SweepTo", true, func(ctx context.Context, d *shard.Data) error { return d.SweepTo(ctx, rev) })
}

func (r *remote) Renew(ctx context.Context, id int64) (ttl int64, err error) {
	err = r.call(ctx, "Renew", true, func(ctx context.Context, d *shard.Data) (err error) {
		ttl, err = d.Renew(ctx, id)
		return err
	})
	return ttl, err
}

func (r *remote) TimeToLive(ctx context.Context, id int64, attached bool) (life shard.LeaseLife, found bool, err error) {
	err = r.call(ctx, "TimeToLive", true, func(ctx context.Context, d *shard.Data) (err error) {
		life, found, err = d.TimeToLive(ctx, id, attached)
		return err
	})
	return life, found, err
}

func (r *remote) AwaitEnded(ctx context.Context, id int64) error {
	return r.call(ctx, "AwaitEnded", true, func(ctx context.Context, d *shard.Data) error { return d.AwaitEnded(ctx, id) })
}

func (r *remote) Register(ctx context.Context, id int64, shardID uint64) (incarnation uint64, err error) {
	err = r.call(ctx, "Register", true, func(ctx context.Context, d *shard.Data) (err error) {
		incarnation, err = d.Register(ctx, id, shardID)
		return err
	})
	return incarnation, err
}

func (r *remote) Drop(ctx context.Context, ended []lease.Ref) error {
	return r.call(ctx, "Drop", false, func(ctx context.Context, d *shard.Data) error { return d.Drop(ctx, ended) })
}

// oracle asks the leader of the system shard, on whichever node it is.
type oracle struct{ p *process }

var (
	_ shard.Oracle = oracle{}
	_ router.Order = oracle{}
)

// oracleAttempt bounds one question to the oracle.
const oracleAttempt = 200 * time.Millisecond

// at calls the oracle once.
func (o oracle) at(ctx context.Context, c call, fn func(context.Context, *placement.Cluster) error) error {
	c.to, c.shard = o.p.cluster.Replica().Leader().ReplicaID, placement.SystemShard
	switch c.to {
	case 0:
		return shard.ErrNotLeader
	case o.p.node.id:
		c.from = c.to
		if d := o.p.node.c.interfere.Load(); d != nil && !pause(ctx, (*d)(c).after) {
			return context.Cause(ctx)
		}
		return fn(ctx, o.p.cluster)
	}
	arrived, err := o.p.carry(ctx, c, func(ctx context.Context, to *process) error { return fn(ctx, to.cluster) })
	if errors.Is(err, errLost) && !arrived {
		return shard.ErrNotLeader
	}
	return err
}

// Ask asks for numbers once.
func (o oracle) Ask(ctx context.Context, count int) (b shard.Block, err error) {
	err = o.at(ctx, call{name: "Ask", count: count}, func(ctx context.Context, c *placement.Cluster) error {
		b, err = c.Ask(ctx, count)
		return err
	})
	return b, err
}

// Newest asks for the newest number until there is an answer.
func (o oracle) Newest(ctx context.Context) (shard.Block, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, oracleAttempt)
		b, err := o.Ask(attempt, 0)
		cancel()
		if err == nil {
			return b, nil
		}
		if !pause(ctx, time.Millisecond) {
			return b, context.Cause(ctx)
		}
	}
}

// Compact makes rev the compaction revision.
func (o oracle) Compact(ctx context.Context, rev int64) (done bool, err error) {
	for {
		err = o.at(ctx, call{name: "Compact"}, func(ctx context.Context, c *placement.Cluster) error {
			done, err = c.Compact(ctx, rev)
			return err
		})
		if !errors.Is(err, shard.ErrNotLeader) {
			if err != nil {
				err = shard.ErrTimeout
			}
			return done, err
		}
		if !pause(ctx, time.Millisecond) {
			return false, context.Cause(ctx)
		}
	}
}
