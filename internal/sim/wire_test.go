package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/system"
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
	to := s.answering(c.to)
	if to == nil || !letIn(p, to) || !to.enter() {
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

// mesh makes calls between nodes.
type mesh struct{ p *process }

var _ remote.Mesh = mesh{}

// methodNames are the names by which tests know the methods (remote/system.go, remote/data.go).
var methodNames = map[byte]string{
	16: "Write", 17: "Confirm", 18: "Promise", 19: "Raise", 20: "SweepTo", 21: "Renew", 22: "TimeToLive", 23: "AwaitEnded",
	1: "SystemPropose", 2: "SystemConfirm", 24: "Register", 25: "Drop", 26: "Applied", 29: "Finish", 30: "Abort", 31: "Settled", 32: "RenewAhead", promises: "Promises", waits: "Waits", open: "Open",
}

// promises is about several shards, and waits about none.
const promises, waits = 40, 41

// open is about a transaction, which the node coordinates.
const open = 42

// Call makes one call. Behind the method's number comes the shard's id, where it is for one.
func (m mesh) Call(ctx context.Context, node uint64, request []byte) (answer []byte, err error) {
	name := methodNames[request[0]]
	shardID, n := binary.Uvarint(request[1:])
	switch {
	case name != "" && request[0] < 16:
		shardID = placement.SystemShard
	case name == "" || n <= 0:
		return nil, fmt.Errorf("sim: a call of method %d", request[0])
	case request[0] == promises, request[0] == waits, request[0] == open:
		shardID = 0
	}
	arrived, err := m.p.carry(ctx, call{link: link{to: node}, name: name, shard: shardID}, func(ctx context.Context, to *process) error {
		answer = to.server.Load().Handle(ctx, request)
		return nil
	})
	switch {
	case !errors.Is(err, errLost):
		return answer, err
	case arrived:
		return nil, peer.ErrLost
	default:
		return nil, peer.ErrUnsent
	}
}

// leaders finds the leaders of data shards on other nodes.
func (p *process) leaders() *remote.Leaders {
	return &remote.Leaders{Mesh: mesh{p}, Shards: p.shards, NodeOf: p.NodeOf}
}

// oracle asks the leader of the system shard, on whichever node it is.
type oracle struct{ p *process }

var (
	_ raft.Oracle  = oracle{}
	_ router.Order = oracle{}
)

// oracleAttempt bounds one question to the oracle.
func (p *process) oracleAttempt() time.Duration {
	return max(200*time.Millisecond, 4*electionTicks*p.node.c.options.tick)
}

// at calls the oracle once.
func (o oracle) at(ctx context.Context, c call, fn func(context.Context, *system.Cluster) error) error {
	c.to, c.shard = o.p.cluster.Leader(), placement.SystemShard
	switch c.to {
	case 0:
		return raft.ErrNotLeader
	case o.p.node.id:
		c.from = c.to
		if d := o.p.node.c.interfere.Load(); d != nil && !pause(ctx, (*d)(c).after) {
			return context.Cause(ctx)
		}
		return fn(ctx, o.p.cluster)
	}
	arrived, err := o.p.carry(ctx, c, func(ctx context.Context, to *process) error { return fn(ctx, to.cluster) })
	if errors.Is(err, errLost) && !arrived {
		return raft.ErrNotLeader
	}
	return err
}

// Ask asks for numbers once.
func (o oracle) Ask(ctx context.Context, count int, by raft.Leading) (b raft.Block, err error) {
	if o.p.unnamed.Load() {
		by = raft.Leading{}
	}
	voted := o.p.cluster.Replica().Voted()
	err = o.at(ctx, call{name: "Ask", count: count}, func(ctx context.Context, c *system.Cluster) error {
		b, err = c.Here().Ask(ctx, count, by, voted)
		return err
	})
	return b, err
}

// Prove asks about claims once.
func (o oracle) Prove(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	err = o.at(ctx, call{name: "Prove"}, func(ctx context.Context, c *system.Cluster) error {
		since, proved, err = c.Prove(ctx, claims)
		return err
	})
	return since, proved, err
}

// IsOracle reports whether the process is the oracle.
func (o oracle) IsOracle() bool { return o.p.cluster.IsOracle() }

// Newest asks for the newest number until there is an answer.
func (o oracle) Newest(ctx context.Context) (raft.Block, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, o.p.oracleAttempt())
		b, err := o.Ask(attempt, 0, raft.Leading{})
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
		err = o.at(ctx, call{name: "Compact"}, func(ctx context.Context, c *system.Cluster) error {
			done, err = c.Compact(ctx, rev)
			return err
		})
		if !errors.Is(err, raft.ErrNotLeader) {
			if err != nil {
				err = raft.ErrTimeout
			}
			return done, err
		}
		if !pause(ctx, time.Millisecond) {
			return false, context.Cause(ctx)
		}
	}
}
