package shard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/lease"
)

const (
	// maxEndPerRound bounds the leases whose ends one round carries on.
	maxEndPerRound = 1000
	// endAttempt bounds a round, so that a shard without a leader does not hold up the
	// ends of leases that have no keys there for long.
	endAttempt = 2 * time.Second
	// endPause lies between a round that failed and the next.
	endPause = 100 * time.Millisecond
	// buryTicks is how often a leader looks for tombstones that nothing needs.
	buryTicks = 50
)

// ender carries on the ends of leases that have keys on other shards, while this node
// leads the leases' home: it has each of those shards delete its keys, then forgets
// the lease. Every step may be repeated, so that a new leader resumes what it finds.
// Its goroutine runs only while there is an end under way.
type ender struct {
	d      *Data
	ctx    context.Context //nolint:containedctx // lives as long as the shard
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// running is protected by mu; closed too.
	running, closed bool
	// ticks counts up to the next look at the tombstones; burying says that some are
	// being taken away. Both are protected by mu.
	ticks   int
	burying bool
}

func newEnder(d *Data) *ender {
	e := &ender{d: d}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// tick starts what is to be done. The leader calls it.
func (e *ender) tick() {
	e.start()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ticks++; e.ticks >= buryTicks && !e.burying && !e.closed {
		e.ticks = 0
		e.buryLocked()
	}
}

// start carries on the ends that are under way.
func (e *ender) start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.running && !e.closed && len(e.d.leases.EndingLeases(1)) > 0 && e.d.roads.Load() != nil {
		e.running = true
		e.wg.Add(1)
		go e.run()
	}
}

// run ends leases until there are none or this node does not lead.
func (e *ender) run() {
	defer e.wg.Done()
	for {
		e.mu.Lock()
		refs := e.d.leases.EndingLeases(maxEndPerRound)
		if e.closed || len(refs) == 0 || e.d.replica.Serving() == 0 {
			e.running = false
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		err := e.end(refs)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrStopped) && e.ctx.Err() == nil {
			e.d.replica.log.Warn("ends of leases are delayed; they are tried again",
				slog.Uint64("shard", e.d.replica.shardID), slog.Any("error", err))
		}
		select {
		case <-time.After(endPause):
		case <-e.ctx.Done():
		}
	}
}

// end carries one round through all steps. A lease is forgotten when all its shards
// have deleted its keys, whatever becomes of the others.
func (e *ender) end(refs []lease.Ref) error {
	ctx, cancel := context.WithTimeout(e.ctx, endAttempt)
	defer cancel()
	// holders counts the shards that have still to delete keys, by lease.
	holders := make(map[int64]int, len(refs))
	byShard := make(map[uint64][]lease.Ref)
	for _, r := range refs {
		shards := e.d.leases.Registered(r.ID)
		holders[r.ID] = len(shards)
		for _, shardID := range shards {
			byShard[shardID] = append(byShard[shardID], r)
		}
	}
	type outcome struct {
		dropped []lease.Ref
		err     error
	}
	outcomes := make(chan outcome, len(byShard))
	roads := *e.d.roads.Load()
	for shardID, ended := range byShard {
		go func() { outcomes <- outcome{ended, roads.Drop(ctx, shardID, ended)} }()
	}
	var failed error
	for range byShard {
		o := <-outcomes
		if o.err != nil {
			failed = o.err
			continue
		}
		var gone []lease.Ref
		for _, r := range o.dropped {
			if holders[r.ID]--; holders[r.ID] == 0 {
				gone = append(gone, r)
			}
		}
		if err := e.forget(gone); err != nil {
			failed = err
		}
	}
	return failed
}

// forget removes the records of leases that have no key left anywhere.
func (e *ender) forget(gone []lease.Ref) error {
	if len(gone) == 0 {
		return nil
	}
	_, err := e.d.replica.Propose(e.ctx, kindLeaseForget, appendRefs(gone))
	return err
}

// buryLocked takes away the tombstones of leases that no command under way uses. e.mu
// must be held.
func (e *ender) buryLocked() {
	var refs []lease.Ref
	tombs := e.d.leases.Tombs(maxEndPerRound)
	if len(tombs) == maxEndPerRound {
		e.ticks = buryTicks // there may be more
	}
	for _, r := range tombs {
		if !e.d.pending.has(r.ID) {
			refs = append(refs, r)
		}
	}
	if len(refs) == 0 {
		return
	}
	e.burying = true
	p := Proposal{Kind: kindBury, Payload: appendRefs(refs)}
	settled := func(any, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.burying = false
	}
	if err := e.d.replica.SubmitLater(p, nil, settled); err != nil {
		e.burying = false
	}
}

// close stops the ender.
func (e *ender) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
}
