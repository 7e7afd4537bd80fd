package raft

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"

	"github.com/latchkey-db/latchkey/internal/share"
)

// Replica is this node's member of one shard: the way into its leader's log, the
// proof that it leads, and what is known of the leader. Methods may be called
// from any goroutine.
type Replica struct {
	shardID   uint64
	replicaID uint64
	prefix    []byte
	host      *Host
	nh        *dragonboat.NodeHost
	session   *client.Session
	machine   Machine
	leads     Leadership
	oracle    Oracle
	syncer    *Syncer
	fs        vfs.FS
	tempDir   string
	log       *slog.Logger
	fatal     func(error)
	observer  Observer
	// observe is told of the commands that were applied; resolved of what was promised of
	// all keys; numbered of the numbers that commands get. Each may be nil.
	observe  func(c Command, rejected error, took time.Duration)
	resolved func(rev int64)
	numbered func(rev int64)

	// wg counts the goroutines that the replica started.
	wg sync.WaitGroup
	// leadMu orders the calls of leads. It is taken before mu.
	leadMu sync.Mutex
	// machineMu is held while the state changes and while it is replaced, so that
	// nobody sees a half.
	machineMu sync.Mutex
	// confirmations are those of leadership under way.
	confirmations share.Share[struct{}, struct{}]
	// resolving is what was promised of all keys.
	resolving resolving
	// kick wakes the proposer.
	kick chan struct{}
	// ctx ends when the replica is closed.
	ctx    context.Context //nolint:containedctx // lives as long as the replica
	cancel context.CancelFunc

	// cutting says that the log is being cut, and cut is how far the state had applied when it was last (cut.go).
	cutting atomic.Bool
	cut     atomic.Uint64
	// recovered is set, for good, when the state holds all that it ever showed
	// (recovered.go).
	recovered atomic.Bool

	mu sync.Mutex
	// The fields below are protected by mu.

	closed bool
	// known is the leader that dragonboat reported last; over is canceled with the next
	// report.
	known Leader
	over  replaced
	// led is the latest term in which one was known to lead; later is canceled with the next.
	led   uint64
	later replaced
	// beginning is the term for which a goroutine is proposing a begin entry.
	beginning uint64
	// serving is the term in which this replica serves as leader, or 0.
	// Invariant: the replica has applied Begin(serving) from the log.
	serving uint64
	// applied is the progress of the state, and old where the log ended when it was opened.
	applied progress
	old     oldLog
	// leaderless is since when no leader is known, zero while one is.
	leaderless time.Time
	// number is the last batch number used in the term served.
	number uint64
	// queue holds the calls without numbers that wait for a place in a batch, oldest
	// first.
	queue []*call
	// took is how long batches of this leader take to apply, about; 0 before there was one.
	took time.Duration
	// unawaited is what is known of calls of the queue that nobody waits for.
	unawaited unawaited
	// announcing holds the calls that announce numbers and wait for a place in a batch, oldest first,
	// and announced is the group that they will be, once it has its turn. Invariant: announced is nil
	// while there are none.
	announcing []*call
	announced  *group
	// waiting holds the calls that wait for a request for numbers, oldest first.
	waiting []*call
	// asks are the requests for numbers whose calls have none yet, in the order in
	// which they were sent.
	asks []*ask
	// awaitingTurn says that a goroutine waits for the turn of the next request.
	awaitingTurn bool
	// ready are the groups that wait for a place in a batch. Their numbers rise.
	ready []*group
	// sending is the batch that is being put together, nil if none is.
	sending *flight
	// promised is the highest revision that was promised; used is the highest number
	// that a call got. Invariant: no call gets a number up to either.
	promised, used int64
	// noted is the newest term in which the oracle has answered a request for numbers.
	noted uint64
	// vouched is what Raft has proved last that the oracle can go on from (together.go).
	vouched Claim
	// expected holds, by the sequence of their ids, the calls whose commands this node
	// has handed to the leader on another (origin.go). Invariant: each is aimed at a term
	// not below begun.
	expected map[uint64]*call
	// begun is the highest term whose begin entry the log has shown.
	begun uint64
	// flight holds the batches that were given to dragonboat and are not
	// settled, in the order of their numbers.
	flight []*flight
	// applying holds the batches with numbers that left flight because they are
	// being applied, until readers see what they did.
	applying []*flight
	// jumps counts the moments at which what was under way was lost sight of.
	jumps uint64
	// proposing is true while the proposer's goroutine runs, held while it proposes nothing
	// new (handover.go).
	proposing, held bool
	// progressed is closed when applied grows; nil while nobody waits for that.
	progressed chan struct{}
	// changed is closed, and replaced, when known, serving, applied.term or
	// closed changes.
	changed chan struct{}
}

// Leader says who leads a shard, as far as a node knows.
type Leader struct {
	// ReplicaID is the leader's replica, or 0 while there is none.
	ReplicaID uint64
	// Term is the Raft term.
	Term uint64
}

// Stall is a place between two steps of a rule where a simulation may have the goroutine
// stand still. No lock may be held.
func (r *Replica) Stall(at string) {
	if stall := r.host.cfg.Stall; stall != nil {
		stall(r.shardID, at)
	}
}

// ShardID returns the id of the replica's shard.
func (r *Replica) ShardID() uint64 { return r.shardID }

// ReplicaID returns the replica's id in its shard.
func (r *Replica) ReplicaID() uint64 { return r.replicaID }

// Leader returns the leader that this node knows. It is a belief, no proof.
func (r *Replica) Leader() Leader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// LeaderUntil returns Leader, and a context that ends when this node knows another.
func (r *Replica) LeaderUntil() (Leader, context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known, r.over.ctx
}

// LeaderOfTerm returns Leader, and a context that ends when this node knows the leader of a later
// term. It lasts while none is known: whoever led may lead on, and nobody else can be asked.
func (r *Replica) LeaderOfTerm() (Leader, context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known, r.later.ctx
}

// replaced is what ends when something is replaced.
type replaced struct {
	ctx context.Context //nolint:containedctx // lives until the replacement
	end context.CancelFunc
}

// renew ends what was and begins anew, below parent.
func (d *replaced) renew(parent context.Context) {
	if d.end != nil {
		d.end()
	}
	d.ctx, d.end = context.WithCancel(parent)
}

// Serving returns the term in which this replica serves as leader, or 0.
func (r *Replica) Serving() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.serving
}

// Applied returns the Raft index up to which the state has applied.
func (r *Replica) Applied() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.applied.index
}

// Committed returns the Raft index up to which this replica knows the log to be committed,
// which is not below Applied.
func (r *Replica) Committed() uint64 {
	committed := r.host.logs.log.Committed(r.shardID, r.replicaID)
	return max(committed, r.Applied())
}

// AwaitApplied waits until the state has applied the entry at index.
func (r *Replica) AwaitApplied(ctx context.Context, index uint64) error {
	for {
		r.mu.Lock()
		applied, closed := r.applied.index, r.closed
		if applied < index && r.progressed == nil {
			r.progressed = make(chan struct{})
		}
		progressed := r.progressed
		r.mu.Unlock()
		switch {
		case applied >= index:
			return nil
		case closed:
			return ErrStopped
		}
		select {
		case <-progressed:
		case <-r.ctx.Done():
			return ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// progressLocked wakes those who wait for entries to be applied. r.mu must be held.
func (r *Replica) progressLocked() {
	if r.progressed != nil {
		close(r.progressed)
		r.progressed = nil
	}
}

// AwaitServing waits until this replica serves as leader.
func (r *Replica) AwaitServing(ctx context.Context) error {
	return r.until(ctx, func() bool { return r.serving != 0 })
}

// AwaitLeader waits until this replica serves as leader, or knows another that may.
func (r *Replica) AwaitLeader(ctx context.Context) error {
	return r.until(ctx, func() bool { return r.serving != 0 || r.ledElsewhereLocked() && r.known.Term >= r.begun })
}

// AwaitBegun waits while this replica has been elected and does not serve yet.
func (r *Replica) AwaitBegun(ctx context.Context) error {
	return r.until(ctx, func() bool {
		return r.known.ReplicaID != r.replicaID || r.serving == r.known.Term || r.applied.term > r.known.Term
	})
}

// ledElsewhereLocked reports whether another replica is known to lead. r.mu must be held.
func (r *Replica) ledElsewhereLocked() bool {
	return r.known.ReplicaID != 0 && r.known.ReplicaID != r.replicaID
}

// until waits until a condition holds that r.mu protects and notifyLocked tells of.
func (r *Replica) until(ctx context.Context, holds func() bool) error {
	for {
		r.mu.Lock()
		ok, closed, changed := holds(), r.closed, r.changed
		r.mu.Unlock()
		switch {
		case closed:
			return ErrStopped
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// notifyLocked wakes all who wait for a change. r.mu must be held.
func (r *Replica) notifyLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// wake makes the proposer look again.
func (r *Replica) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// opened takes over the progress that the state was opened with.
func (r *Replica) opened(p progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied, r.begun = p, p.term
}

// advanced takes over the progress after a run of entries.
func (r *Replica) advanced(p progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := p.term != r.applied.term
	r.applied = p
	for _, f := range r.applying {
		f.leave()
	}
	r.progressLocked()
	clear(r.applying)
	r.applying = r.applying[:0]
	if begun {
		r.notifyLocked()
	}
}

// jumped takes over the progress of a state that came as a snapshot. The
// replica can't lead in the term it led before: it was behind.
func (r *Replica) jumped(p progress) {
	r.cut.Store(p.index)
	r.mu.Lock()
	r.applied = p
	r.begun = max(r.begun, p.term)
	expected := r.takeExpectedLocked()
	r.progressLocked()
	r.notifyLocked()
	r.mu.Unlock()
	settleAll(expected, ErrTimeout)
}

// Between runs fn while no entry is being applied, so that what it reads of the
// state's parts belongs together. fn must be short and must not call the
// replica.
func (r *Replica) Between(fn func()) {
	r.machineMu.Lock()
	defer r.machineMu.Unlock()
	fn()
}

// close ends the replica's own work; dragonboat has stopped calling it or is
// about to.
func (r *Replica) close() {
	r.mu.Lock()
	r.closed = true
	r.notifyLocked()
	r.mu.Unlock()
	r.cancel()
	r.stepDown(ErrStopped)
	r.lost()
	r.wake()
	r.wg.Wait()
}
