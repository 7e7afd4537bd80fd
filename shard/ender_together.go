package shard

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// maxEndsTogether bounds the transactions of one lane that are under way.
const maxEndsTogether = 256

// togetherLane is the leases that have keys on the same shards and that end in a transaction
// each, in the order in which their ends were decided.
type togetherLane struct {
	refs []lease.Ref
	// running counts the goroutines that see to them.
	running int
}

// addTogetherLocked takes over a lease that ends in a transaction. e.mu must be held.
func (e *ender) addTogetherLocked(ref lease.Ref) {
	key := fmt.Sprint(e.d.leases.Registered(ref.ID))
	l := e.ends.together[key]
	if l == nil {
		l = &togetherLane{}
		e.ends.together[key] = l
	}
	l.refs = append(l.refs, ref)
	e.ends.left[ref]++
}

// startTogetherLocked starts transactions for the leases that wait for theirs. e.mu must be held.
func (e *ender) startTogetherLocked() {
	t := e.ends
	for _, l := range t.together {
		for n := len(l.refs); n > 0 && l.running < maxEndsTogether; n-- {
			l.running++
			e.wg.Go(func() { e.endTogether(t, l) })
		}
	}
}

// endTogether ends leases of a lane, one after the other, until there are none or the term ends.
func (e *ender) endTogether(t *ends, l *togetherLane) {
	for {
		ref, ok := e.nextTogether(t, l)
		if !ok {
			return
		}
		err := (*e.d.others.Load()).End(t.ctx, e.d.replica.ShardID(), ref)
		e.endedTogether(t, l, ref, err)
		if err == nil {
			continue
		}
		if !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrStopped) && t.ctx.Err() == nil {
			e.d.log.Warn("the end of a lease is delayed; it is tried again",
				slog.String("lease", fmt.Sprintf("%x", uint64(ref.ID))), slog.Any("error", err))
		}
		select {
		case <-time.After(endPause):
		case <-t.ctx.Done():
		}
	}
}

// nextTogether takes the first lease out of a lane. Where there is none the calling goroutine ends.
func (e *ender) nextTogether(t *ends, l *togetherLane) (ref lease.Ref, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends != t {
		return ref, false
	}
	if len(l.refs) == 0 {
		l.running--
		return ref, false
	}
	ref, l.refs = l.refs[0], l.refs[1:]
	return ref, true
}

// endedTogether notes what became of the end of a lease: it took place, or is tried again behind the
// others of its lane.
func (e *ender) endedTogether(t *ends, l *togetherLane, ref lease.Ref, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends != t {
		return
	}
	if err != nil {
		l.refs = append(l.refs, ref)
		return
	}
	delete(t.left, ref)
}
