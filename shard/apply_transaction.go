package shard

import (
	"errors"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// ErrAborted is returned for a step of a transaction over several shards that is over.
var ErrAborted = errors.New("shard: the transaction is aborted")

// Transactions over several shards (internal/commit). Each has a number: that of the entry that
// commits it, at its home. What holds of the log of each shard:
//
//   - A Prepare applies before the transaction's own number is asked for, and promises see it as a write
//     of what it holds. So a state at that revision or above, and one behind a promise of it, has
//     the hold or the changes. It takes no number, but one to carry that the transaction's is above
//     (raft.Proposal.Announces); until all nodes know that it takes one as a write does.
//   - Holds are enforced where commands apply. A command that meets one is turned away, also one
//     that was numbered before.
//   - The first of a decision and an abort that applies at the home wins: the decision needs the
//     hold that the abort takes away.
//   - What ends leaves its outcome behind, until its node says that it goes on with nothing so old:
//     a Prepare that comes late holds nothing.

// checked applies a step that carries what its sender has checked.
func (r *dataRun) checked(
	c raft.Command, step func(c raft.Command, outdated bool, payload []byte) (any, error),
) (result any, rejected, failed error) {
	g, verdicts, rest, err := cutChecks(c.Payload)
	if err != nil {
		return nil, nil, err
	}
	outdated := r.fence.Closed && (g == nil || g.Epoch < r.fence.Epoch)
	if g != nil && !outdated {
		for _, id := range g.Leases {
			if !r.d.leases.Every(id, g.Writable.Contains) {
				return nil, ErrForbidden, nil
			}
		}
	}
	r.verdicts = verdicts
	result, err = step(c, outdated, rest)
	return r.outcome(result, err)
}

// appendChecks writes what goes before a step that was checked: the guard, if there is one, and
// what the homes have said of leases.
func appendChecks(dst []byte, g *Guard, verdicts []verdict) []byte {
	if g == nil {
		return appendVerdicts(append(dst, 0), verdicts)
	}
	return appendVerdicts(appendGuard(append(dst, 1), g), verdicts)
}

var errBadChecks = errors.New("malformed step of a transaction")

// cutChecks reads what appendChecks wrote and returns what follows.
func cutChecks(src []byte) (g *Guard, verdicts []verdict, rest []byte, err error) {
	if len(src) == 0 || src[0] > 1 {
		return nil, nil, nil, errBadChecks
	}
	guarded := src[0] == 1
	if src = src[1:]; guarded {
		var read Guard
		if read, src, err = cutGuard(src); err != nil {
			return nil, nil, nil, err
		}
		g = &read
	}
	verdicts, rest, err = cutVerdicts(src)
	return g, verdicts, rest, err
}

// prepare has a transaction hold keys. outdated says that its sender's rights may have changed.
func (r *dataRun) prepare(c raft.Command, outdated bool, payload []byte) (any, error) {
	p, err := commit.DecodePrepare(payload)
	if err != nil {
		return nil, err
	}
	switch {
	case outdated && !p.End.Decided:
		return nil, ErrOutdated
	case !r.shape.Ordered:
		return nil, errNotOwned
	case r.d.transactions.Refused(p.ID):
		return nil, ErrAborted
	}
	if err := r.prepareEnd(&p); err != nil {
		return nil, err
	}
	named := append(append([]keys.Span(nil), p.Reads...), p.Writes...)
	switch {
	case !r.owns(named):
		return nil, errNotOwned
	case r.w.Meets(p.Reads, p.Writes):
		return nil, errHeld
	}
	var out commit.Prepared
	for _, id := range p.Leases {
		if !(runLeases{r}).Exists(id) {
			if r.undecided != nil && !errors.As(r.undecided, new(unknownLeaseError)) {
				return nil, r.undecided
			}
			r.undecided = nil
			out.Missing = append(out.Missing, id)
		}
	}
	// Nothing turns the command away from here on.
	for _, v := range r.verdicts {
		if v.incarnation == 0 || r.d.leases.Holds(v.id) || r.home(v.id) {
			continue
		}
		ref := lease.Ref{ID: v.id, Incarnation: v.incarnation}
		if !r.d.leases.MayMakeShadow(ref) {
			continue
		}
		if err := r.d.leases.MakeShadow(r.batch, ref); err != nil {
			return nil, err
		}
	}
	if err := r.w.Hold(p.ID.Key(), c.Number, p.Reads, p.Writes); err != nil {
		return nil, err
	}
	if err := r.d.transactions.Hold(r.batch, &p); err != nil {
		return nil, fmt.Errorf("note transaction: %w", err)
	}
	r.held = append(r.held, p.ID)
	return out, nil
}

// decide commits a transaction at the command's number. outdated says that its sender's rights may
// have changed.
func (r *dataRun) decide(c raft.Command, outdated bool, payload []byte) (any, error) {
	d, err := commit.DecodeDecision(payload)
	if err != nil {
		return nil, err
	}
	var mine []mvcc.Placed
	var others []commit.Share
	for _, s := range d.Shares {
		if s.ShardID != r.d.replica.ShardID() {
			others = append(others, s)
		} else if mine, err = s.Ops.Decode(); err != nil {
			return nil, err
		}
	}
	floor := max(r.w.Compacted(), c.Compacted)
	h, held := r.d.transactions.Held(d.ID)
	unheld := d.Open != 0
	switch {
	case outdated && !h.End.Decided:
		return nil, ErrOutdated
	case !held && !unheld:
		return nil, ErrAborted
	case d.Lowest != 0 && d.Lowest < floor:
		return nil, mvcc.ErrCompacted
	case d.Highest >= c.Number:
		return nil, mvcc.ErrFutureRev
	}
	if unheld {
		if err := r.mayPut(d.ID, mine); err != nil {
			return nil, err
		}
		if err := r.d.transactions.Mark(r.batch, d.ID, d.Open); err != nil {
			return nil, fmt.Errorf("note commit: %w", err)
		}
	}
	committed := commit.Committed{Rev: c.Number, Shares: others, Ended: h.End.Lease}
	if err := r.d.transactions.Commit(r.batch, d.ID, committed); err != nil {
		return nil, fmt.Errorf("note commit: %w", err)
	}
	if err := r.settle(d.ID, c.Number, mine); err != nil {
		return nil, err
	}
	r.decided = append(r.decided, d.ID)
	return commit.Outcome{Rev: c.Number}, nil
}

// mayPut returns why the shard, as a transaction's home, does not commit it with puts for which it
// holds nothing, nil if it does.
func (r *dataRun) mayPut(id commit.ID, puts []mvcc.Placed) error {
	writes := writesOfOps(puts).Spans
	switch {
	case !r.shape.Ordered, !r.owns(writes):
		return errNotOwned
	case r.d.transactions.Refused(id):
		return ErrAborted
	case r.w.Meets(nil, writes):
		return ErrYounger
	}
	return nil
}

// settle makes the changes of a transaction, at revision rev, and lets the keys go that it holds.
func (r *dataRun) settle(id commit.ID, rev int64, ops []mvcc.Placed) error {
	h, held := r.d.transactions.Held(id)
	if !h.End.IsZero() {
		ops = deletions(r.d.leases.KeysOf(h.End.Lease))
	}
	var err error
	if held {
		err = r.w.Insert(id.Key(), rev, ops)
	} else {
		err = r.w.InsertUnheld(rev, ops)
	}
	if err != nil {
		return err
	}
	if r.failed != nil {
		return r.failed
	}
	if !h.End.IsZero() {
		if err := r.endHere(h.End.Lease); err != nil {
			return err
		}
	}
	return r.endTransaction(id, rev)
}

// endTransaction notes that a transaction has ended, at revision rev or aborted if that is 0.
func (r *dataRun) endTransaction(id commit.ID, rev int64) error {
	r.over = append(r.over, id)
	return r.d.transactions.End(r.batch, id, rev)
}

// finish makes the changes of transactions that their homes have committed. Those that hold
// nothing have been finished before.
func (r *dataRun) finish(payload []byte) error {
	list, err := commit.DecodeFinishes(payload)
	if err != nil {
		return err
	}
	for _, f := range list {
		if _, held := r.d.transactions.Held(f.ID); !held {
			continue
		}
		ops, err := f.Ops.Decode()
		if err != nil {
			return err
		}
		if err := r.settle(f.ID, f.Rev, ops); err != nil {
			return err
		}
	}
	return nil
}

// abort lets go what transactions hold that the shard has not committed, and sees that they
// never hold anything here. It returns what became of the last.
func (r *dataRun) abort(payload []byte) (out commit.Outcome, err error) {
	ids, err := commit.DecodeIDs(payload)
	if err != nil {
		return out, err
	}
	for _, id := range ids {
		out = commit.Outcome{}
		if rev, ended := r.d.transactions.Outcome(id); ended {
			out.Rev = rev
			continue
		}
		if err := errors.Join(r.w.Release(id.Key()), r.endTransaction(id, 0)); err != nil {
			return out, fmt.Errorf("abort: %w", err)
		}
	}
	return out, nil
}

// forgetCommitted removes transactions that all participants have finished.
func (r *dataRun) forgetCommitted(payload []byte) error {
	ids, err := commit.DecodeIDs(payload)
	if err != nil {
		return err
	}
	for _, id := range ids {
		c, _ := r.d.transactions.Committed(id)
		if err := errors.Join(r.forgetLease(c.Ended), r.d.transactions.Forget(r.batch, id)); err != nil {
			return err
		}
	}
	return nil
}
