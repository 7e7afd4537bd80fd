package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

// ErrYounger is returned for a Prepare that meets keys held for an older transaction, while
// its own holds others perhaps, and for a decision of a home that holds nothing for it which meets keys
// held for any: it gives them back and begins again.
var ErrYounger = errors.New("shard: an older transaction holds keys of it")

// maxHeldBack bounds the commands of a shard that wait for transactions to let keys go.
const maxHeldBack = 5000

// Step is a step of a transaction over several shards that its coordinator has a shard take.
type Step struct {
	// Prepare or Decision is the step.
	Prepare  *commit.Prepare
	Decision *commit.Decision
	// Patient says that the transaction holds nothing elsewhere: its Prepare waits for
	// whoever holds keys of it, and else only for younger ones.
	Patient bool
}

// kind and payload are the command's, without what goes before.
func (s *Step) kind() Kind {
	if s.Prepare != nil {
		return kindPrepare
	}
	return kindDecide
}

func (s *Step) payload() []byte {
	if s.Prepare != nil {
		return s.Prepare.Append(nil)
	}
	return s.Decision.Append(nil)
}

// Take has the shard take a step of a transaction. It returns a commit.Prepared or a
// commit.Outcome. Errors are those of Write, ErrAborted and ErrYounger. After any
// error a Prepare may hold keys, unless it is raft.ErrNotApplied, raft.ErrNotLeader, ErrYounger
// or a rejection.
func (d *Data) Take(ctx context.Context, g *Guard, s *Step) (any, error) {
	o, err := d.take(ctx, raft.Proposal{}, g, s)
	if err != nil {
		return nil, err
	}
	return o.Result, o.Err
}

// take is Take with what p says of the command's id and term.
func (d *Data) take(ctx context.Context, p raft.Proposal, g *Guard, s *Step) (o raft.Outcome, err error) {
	if !d.Shape().Ordered {
		return o, raft.ErrNotLeader
	}
	p.Kind, p.Numbers = raft.Kind(s.kind()), 1
	if s.Decision != nil {
		for _, share := range s.Decision.Shares {
			if share.ShardID != d.replica.ShardID() {
				continue
			}
			ops, err := share.Ops.Decode()
			if err != nil {
				return o, err
			}
			p.Writes = writesOfOps(ops)
		}
		if s.Decision.Open != 0 && len(d.met(&need{writes: p.Writes.Spans})) > 0 {
			return o, ErrYounger
		}
		if h, ok := d.transactions.Held(s.Decision.ID); ok && !h.End.IsZero() {
			p.Writes.Unknown = true
		}
		p.Payload = append(appendChecks(nil, g, nil), s.payload()...)
		return d.replica.Decide(ctx, p)
	}
	prepare := kindPrepare
	if others := d.others.Load(); others != nil && (*others).PreparesLess() {
		prepare, p.Numbers, p.Announces = kindPrepareUnnumbered, 0, true
	}
	w := d.line.enter(s.Prepare)
	defer func() {
		if d.line.leave(w) {
			d.store.AskAgain()
		}
	}()
	if err := d.awaitTurn(ctx, s, w); err != nil {
		return o, err
	}
	p.Writes = raft.Writes{Spans: s.Prepare.Writes, Unknown: !s.Prepare.End.IsZero()}
	foreign := slices.DeleteFunc(slices.Clone(s.Prepare.Leases), func(id int64) bool {
		return d.Shape().Owned.Covers(keys.LeasePositions(id)) || d.leases.Holds(id)
	})
	return d.attachOnce(ctx, p, foreign, func(v []verdict) (Kind, []byte) {
		return prepare, append(appendChecks(nil, g, v), s.payload()...)
	})
}

// writesOfOps returns the keys that operations write.
func writesOfOps(ops []mvcc.Placed) (w raft.Writes) {
	for _, o := range ops {
		if put := o.Op.GetRequestPut(); put != nil {
			w.Spans = append(w.Spans, keys.Point(put.Key))
		} else if del := o.Op.GetRequestDeleteRange(); del != nil {
			w.Spans = append(w.Spans, keys.FromRange(del.Key, del.RangeEnd))
		}
	}
	return w
}

// need is what a command is for.
type need struct {
	// reads and writes are the keys that it reads and may write.
	reads, writes []keys.Span
	// leases are those that it may attach keys to, and end is the one that it ends, 0 for none.
	leases []int64
	end    int64
}

// use notes that the command may attach keys to a lease, 0 for none.
func (n *need) use(id int64) {
	if id != 0 && !slices.Contains(n.leases, id) {
		n.leases = append(n.leases, id)
	}
}

// met returns the transactions that a command meets which needs n: it waits until they are
// settled.
func (d *Data) met(n *need) (ids []commit.ID) {
	for _, key := range d.store.Met(n.reads, n.writes) {
		if id, err := commit.FromKey(key); err == nil {
			ids = append(ids, id)
		}
	}
	for _, id := range n.leases {
		if d.transactions.Ends(id) {
			ids = append(ids, d.transactions.HoldersOf(id)...)
		}
	}
	if n.end != 0 {
		ids = append(ids, d.transactions.HoldersOf(n.end)...)
	}
	return ids
}

// free reports whether nothing keeps a command from being carried out that needs n. The keys of a
// lease whose end is decided are there until its transaction is committed, and nothing can be
// attached to it any more: so what names it waits until they are gone.
func (d *Data) free(n *need) bool {
	return len(d.met(n)) == 0 && !slices.ContainsFunc(n.leases, d.intact)
}

// intact reports whether the end of a lease is decided and its keys are not deleted yet.
func (d *Data) intact(id int64) bool {
	rec, ok := d.leases.Get(id)
	return ok && rec.Intact
}

// awaitTurn waits until nobody holds what a Prepare is for, and until it is the next of those that wait
// for that. It returns ErrYounger if an older transaction holds that or is before it, for which it
// would have to wait with keys of its own in hand.
func (d *Data) awaitTurn(ctx context.Context, s *Step, w *inLine) error {
	n := &need{reads: s.Prepare.Reads, writes: s.Prepare.Writes, leases: s.Prepare.Leases}
	if end := s.Prepare.End; !end.IsZero() {
		n.end, n.writes = end.Lease.ID, points(d.leases.KeysOf(end.Lease))
	}
	var younger bool
	next := func() bool { return d.line.next(w, func() bool { return d.free(n) }) }
	err := d.awaitFree(ctx, next, func() bool {
		younger = !s.Patient && (d.line.behind(w) || slices.ContainsFunc(d.met(n), func(id commit.ID) bool {
			h, ok := d.transactions.Held(id)
			return ok && h.Age.Compare(s.Prepare.Age) < 0
		}))
		return younger
	})
	if younger {
		return ErrYounger
	}
	return err
}

// points returns the spans of single keys.
func points(of [][]byte) []keys.Span {
	spans := make([]keys.Span, len(of))
	for i, key := range of {
		spans[i] = keys.Point(key)
	}
	return spans
}

// awaitFree waits until free, which says that nothing keeps a command from being carried out, or
// enough returns true.
func (d *Data) awaitFree(ctx context.Context, free, enough func() bool) error {
	if free() {
		return nil
	}
	if d.heldBack.Add(1) > maxHeldBack {
		d.heldBack.Add(-1)
		return raft.ErrTooManyRequests
	}
	defer d.heldBack.Add(-1)
	return d.awaitSettled(ctx, func() bool { return free() || enough() })
}

// awaitNeed waits until nothing keeps a command from being carried out that needs n.
func (d *Data) awaitNeed(ctx context.Context, n *need) error {
	return d.awaitFree(ctx, func() bool { return d.free(n) }, func() bool { return false })
}

// awaitSettled is Store.AwaitSettled for a leader: it returns raft.ErrNotLeader when this node
// hears of another one, or stops.
func (d *Data) awaitSettled(ctx context.Context, ready func() bool) error {
	_, over := d.replica.LeaderUntil()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(over, func() { cancel(raft.ErrNotLeader) })
	defer stop()
	return d.AwaitSettled(ctx, ready)
}

// AwaitSettled is Store.AwaitSettled, for which the leader, if this node is it, has transactions settled at once.
func (d *Data) AwaitSettled(ctx context.Context, ready func() bool) error {
	if ready() {
		return nil
	}
	d.replica.Hurry()
	return d.store.AwaitSettled(ctx, ready)
}

// hurryFor has transactions settled at once that a reader of some keys up to rev waits for, here or on another node; of all keys
// where there are none.
func (d *Data) hurryFor(rev int64, reads ...keys.Span) {
	if d.store.HeldFrom(reads...) < rev {
		d.replica.Hurry()
	}
}

// Finish makes the changes of transactions that are committed. It may be repeated. Where nobody is known to wait for that it may take a
// moment. Errors are those of Replica.Propose.
func (d *Data) Finish(ctx context.Context, list []commit.Finish) error {
	p := raft.Proposal{Kind: raft.Kind(kindFinish), Payload: commit.AppendFinishes(nil, list)}
	awaited := d.store.Awaited()
	for _, f := range list {
		p.Follows = max(p.Follows, f.Rev)
		h, _ := d.transactions.Held(f.ID)
		awaited = awaited || !h.End.IsZero()
	}
	if !awaited {
		p.Patience = raft.Unawaited
	}
	_, err := d.replica.Submit(ctx, p)
	return err
}

// Abort lets go what a transaction holds that this shard has not committed as its home, and sees
// that it never holds or commits anything here. It returns what became of it. Errors are those of
// Replica.Propose.
func (d *Data) Abort(ctx context.Context, id commit.ID) (commit.Outcome, error) {
	result, err := d.replica.Propose(ctx, raft.Kind(kindAbort), commit.AppendIDs(nil, id))
	if err != nil {
		return commit.Outcome{}, err
	}
	out, ok := result.(commit.Outcome)
	if !ok {
		return out, fmt.Errorf("abort: the command answered %T", result)
	}
	return out, nil
}

// errOpen says that a transaction's coordinator has still to decide.
var errOpen = errors.New("the transaction is being decided")

// Settled asks the transaction's home what became of it, for a participant that holds keys of
// it. Only that it is committed is taken from what this node has applied. Unless its
// coordinator goes on with it, and says so within the time that a node takes to answer, it is
// aborted. Errors are those of Replica.Propose, and
// raft.ErrTimeout while it is open.
func (d *Data) Settled(ctx context.Context, id commit.ID) (commit.Outcome, error) {
	if rev, ended := d.transactions.Outcome(id); ended && rev != 0 {
		return commit.Outcome{Rev: rev}, nil
	}
	others := d.others.Load()
	if d.replica.Serving() == 0 || others == nil {
		return commit.Outcome{}, raft.ErrNotLeader
	}
	ask, cancel := context.WithTimeout(ctx, d.replica.AnswerTimeout())
	open := (*others).Open(ask, id)
	cancel()
	if open {
		return commit.Outcome{}, fmt.Errorf("%w: %w", raft.ErrTimeout, errOpen)
	}
	return d.Abort(ctx, id)
}
