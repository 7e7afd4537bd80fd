package shard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

const (
	// maxEndPerCommand bounds the leases that one command drops or forgets, and the tombstones that it takes away.
	maxEndPerCommand = 1000
	// endPause lies between an attempt that failed and the next.
	endPause = 100 * time.Millisecond
	// tombstoneTicks is how often a leader looks for tombstones that nothing needs.
	tombstoneTicks = 50
)

// ender carries on the ends of leases that have keys on other shards, while this node
// leads the leases' home: it has a transaction delete all their keys, or each of those shards
// its own where not all nodes knew such transactions when the end was decided, and then forgets
// the lease. Every step may be repeated, so that a new leader resumes what it finds.
type ender struct {
	d  *Data
	wg sync.WaitGroup

	mu sync.Mutex
	// ends is nil while this node does not lead. Protected by mu, with all that is in
	// it; closed too.
	ends   *ends
	closed bool
}

// ends is what a leader has to do in one term.
type ends struct {
	ctx    context.Context //nolint:containedctx // lasts as long as the term
	cancel context.CancelFunc
	// lanes lead to the shards that have keys to delete. None waits for another.
	lanes map[uint64]*lane
	// together are the leases that end in a transaction each, by the shards that have keys of them:
	// one without a leader holds up those that have keys there, and no others.
	together map[string]*togetherLane
	// left counts the lanes that a lease is in.
	left map[lease.Ref]int
	// gone are the leases that have no key left anywhere; forgetting says that some
	// are being forgotten.
	gone       []lease.Ref
	forgetting bool
	// ticks counts up to the next look at the tombstones; droppingTombstones says that some are
	// being taken away.
	ticks              int
	droppingTombstones bool
}

// lane is the leases whose keys one shard has still to delete, in the order in which
// they ended.
type lane struct {
	refs []lease.Ref
	// running says that a goroutine sees to them.
	running bool
}

func newEnder(d *Data) *ender { return &ender{d: d} }

// began starts a term with the leases that are ending.
func (e *ender) began(records []lease.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endedLocked()
	if e.closed {
		return
	}
	t := &ends{lanes: make(map[uint64]*lane), together: make(map[string]*togetherLane), left: make(map[lease.Ref]int)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	e.ends = t
	for _, rec := range records {
		e.addLocked(rec)
	}
}

// ended ends the term.
func (e *ender) ended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endedLocked()
}

// endedLocked is ended. e.mu must be held.
func (e *ender) endedLocked() {
	if e.ends != nil {
		e.ends.cancel()
		e.ends = nil
	}
}

// add takes over leases whose end has been decided.
func (e *ender) add(ids []int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends == nil {
		return
	}
	for _, id := range ids {
		if rec, ok := e.d.leases.Get(id); ok {
			e.addLocked(rec)
		}
	}
	e.startLocked()
}

// addLocked takes over a lease, if it is ending and not there yet. e.mu must be held.
func (e *ender) addLocked(rec lease.Record) {
	ref := rec.Ref()
	if !rec.Ending || e.ends.left[ref] > 0 || e.d.transactions.HasEnded(ref) {
		return
	}
	if rec.Intact {
		e.addTogetherLocked(ref)
		return
	}
	for _, shardID := range e.d.leases.Registered(rec.ID) {
		e.ends.left[ref]++
		l := e.ends.lanes[shardID]
		if l == nil {
			l = &lane{}
			e.ends.lanes[shardID] = l
		}
		l.refs = append(l.refs, ref)
	}
}

// tick starts what is to be done. The leader calls it.
func (e *ender) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends == nil {
		return
	}
	e.startLocked()
	e.forgetLocked()
	if e.ends.ticks++; e.ends.ticks >= tombstoneTicks && !e.ends.droppingTombstones {
		e.ends.ticks = 0
		e.dropTombstonesLocked()
	}
}

// startLocked starts the lanes that have something to do. e.mu must be held.
func (e *ender) startLocked() {
	if e.d.others.Load() == nil {
		return
	}
	for shardID, l := range e.ends.lanes {
		if !l.running && len(l.refs) > 0 {
			l.running = true
			t := e.ends
			e.wg.Go(func() { e.drop(t, shardID, l) })
		}
	}
	e.startTogetherLocked()
}

// drop has a shard delete the keys of the leases in its lane, until there are none or
// the term ends.
func (e *ender) drop(t *ends, shardID uint64, l *lane) {
	for {
		refs := e.next(t, l)
		if len(refs) == 0 {
			return
		}
		// The call is bounded as a client's is. A shorter bound would end it over and over
		// where the other shard is far away.
		err := (*e.d.others.Load()).Drop(t.ctx, shardID, refs)
		if err == nil {
			e.dropped(t, l, refs)
			continue
		}
		if !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrStopped) && t.ctx.Err() == nil {
			e.d.log.Warn("ends of leases are delayed; they are tried again",
				slog.Uint64("at", shardID), slog.Any("error", err))
		}
		select {
		case <-time.After(endPause):
		case <-t.ctx.Done():
		}
	}
}

// next returns the first leases of a lane. They stay there until they are dropped.
// Where there are none the lane is at rest.
func (e *ender) next(t *ends, l *lane) []lease.Ref {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends != t {
		return nil
	}
	l.running = len(l.refs) > 0
	return l.refs[:min(len(l.refs), maxEndPerCommand)]
}

// dropped takes the first leases of a lane out of it, and forgets those that are in no
// other.
func (e *ender) dropped(t *ends, l *lane, refs []lease.Ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends != t {
		return
	}
	if l.refs = l.refs[len(refs):]; len(l.refs) == 0 {
		l.refs = nil
	}
	for _, r := range refs {
		if t.left[r]--; t.left[r] == 0 {
			delete(t.left, r)
			t.gone = append(t.gone, r)
		}
	}
	e.forgetLocked()
}

// forgetLocked removes the records of leases that have no key left anywhere. What goes
// meanwhile waits and goes together. e.mu must be held.
func (e *ender) forgetLocked() {
	t := e.ends
	if t.forgetting || len(t.gone) == 0 {
		return
	}
	refs := t.gone[:min(len(t.gone), maxEndPerCommand)]
	settled := func(_ any, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		t.forgetting = false
		if err != nil || e.ends != t {
			return // the next tick tries again
		}
		if t.gone = t.gone[len(refs):]; len(t.gone) == 0 {
			t.gone = nil
		}
		e.forgetLocked()
	}
	p := raft.Proposal{Kind: raft.Kind(kindLeaseForget), Payload: appendRefs(refs)}
	t.forgetting = e.d.replica.SubmitLater(p, nil, settled) == nil
}

// dropTombstonesLocked takes away the tombstones of leases that no command under way uses. e.mu
// must be held.
func (e *ender) dropTombstonesLocked() {
	t := e.ends
	var refs []lease.Ref
	tombs := e.d.leases.Tombstones(maxEndPerCommand)
	if len(tombs) == maxEndPerCommand {
		t.ticks = tombstoneTicks // there may be more
	}
	for _, r := range tombs {
		if !e.d.pending.has(r.ID) {
			refs = append(refs, r)
		}
	}
	if len(refs) == 0 {
		return
	}
	settled := func(any, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		t.droppingTombstones = false
	}
	t.droppingTombstones = e.d.replica.SubmitLater(raft.Proposal{Kind: raft.Kind(kindDropTombstones), Payload: appendRefs(refs)}, nil, settled) == nil
}

// close stops the ender.
func (e *ender) close() {
	e.mu.Lock()
	e.closed = true
	e.endedLocked()
	e.mu.Unlock()
	e.wg.Wait()
}
