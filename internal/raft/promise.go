package raft

import (
	"context"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Promise proves that, once the state of this shard has applied the entry at
// index, it holds every change to the given keys up to revision rev that there will
// ever be. rev must come from the oracle. Where reads is nil it is promised of all
// keys.
//
// Errors are those of Confirm. The order of the steps is forced:
//
//  1. rev is in hand.
//  2. What was asked of the oracle before is waited for, so that reads which come
//     one after the other don't keep overtaking the same writes.
//  3. Nothing gets a number up to rev from now on (numbers.go).
//  4. A proof of leadership is begun. Whoever led before or leads after cannot have
//     acknowledged, or acknowledge, a change up to rev that this leader does not
//     know: earlier leaders' entries are all applied here since Begin, later
//     leaders ask for their numbers later.
//  5. What had its number before step 3 and may write the keys is waited for.
func (r *Replica) Promise(ctx context.Context, rev int64, reads []keys.Span) (index uint64, err error) {
	p, err := r.BeginPromise(ctx, rev)
	if err != nil {
		return 0, err
	}
	return p.Of(ctx, reads)
}

// Promised is what steps 1 to 4 of a promise have come to, which is the same for all
// keys. Whoever came before they began may go on from there.
type Promised struct {
	r     *Replica
	rev   int64
	jumps uint64
}

// BeginPromise takes steps 1 to 4 of a promise up to rev.
func (r *Replica) BeginPromise(ctx context.Context, rev int64) (*Promised, error) {
	if err := r.awaitAsks(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.promised = max(r.promised, rev)
	p := &Promised{r: r, rev: rev, jumps: r.jumps}
	r.mu.Unlock()
	r.Stall("promise")
	if err := r.Confirm(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Of takes step 5 for the keys in reads, for all where it is nil. It may come as late as
// it wants: what had its number before step 3 stays in sight until it has applied or
// never will.
func (p *Promised) Of(ctx context.Context, reads []keys.Span) (index uint64, err error) {
	for {
		index, gone, err := p.look(reads)
		if gone == nil {
			return index, err
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// look takes step 5 if there is nothing to wait for, and else returns what is closed when it
// is worth looking again.
func (p *Promised) look(reads []keys.Span) (index uint64, gone <-chan struct{}, err error) {
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jumps != p.jumps {
		return 0, nil, ErrNotLeader
	}
	return r.applied.index, r.conflictLocked(p.rev, reads), nil
}

// awaitAsks waits for the attempts at getting numbers that are under way, as long as the
// term lasts, which takes them with it.
func (r *Replica) awaitAsks(ctx context.Context) error {
	r.mu.Lock()
	term := r.serving
	var attempts [maxAsks]chan struct{}
	n := 0
	for _, a := range r.asks {
		if !a.ok {
			attempts[n] = a.answered
			n++
		}
	}
	r.mu.Unlock()
	for i := 0; ; {
		changed, err := r.during(term)
		if err != nil || i == n {
			return err
		}
		select {
		case <-attempts[i]:
			i++
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// conflictLocked returns what is closed when a group with a number up to rev that
// may write one of the spans has gone, or nil if there is none. r.mu must be held.
func (r *Replica) conflictLocked(rev int64, spans []keys.Span) <-chan struct{} {
	find := func(groups []*group) <-chan struct{} {
		for _, g := range groups {
			if g.first <= rev && (spans == nil || g.touches(spans)) {
				return g.wait()
			}
		}
		return nil
	}
	for _, flights := range [][]*flight{r.applying, r.flight, {r.sending}} {
		for _, f := range flights {
			if f == nil {
				continue
			}
			if gone := find(f.groups); gone != nil {
				return gone
			}
		}
	}
	return find(r.ready)
}

// wait returns what is closed when the group has left the table. The replica's mu
// must be held.
func (g *group) wait() <-chan struct{} {
	if g.gone == nil {
		g.gone = make(chan struct{})
	}
	return g.gone
}
