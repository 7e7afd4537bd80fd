package mvcc

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// WatchOptions says what a watcher wants to see.
type WatchOptions struct {
	// Key and End name the keys by etcd's range_end rules. The watcher keeps
	// both slices.
	Key, End []byte
	// Start is the first revision to see, which may be in the future; 0 means
	// the first after the registration.
	Start int64
	// After is the lowest revision that counts as that of the registration; without
	// Start.
	After int64
	// Compacted is a revision up to which no version before an event is told of, though
	// the store may still have it; 0 for none.
	Compacted int64
	// PrevKV asks for the versions before the events.
	PrevKV bool
	// NoPut and NoDelete leave out events of a kind.
	NoPut, NoDelete bool
	// Places asks for the places of events.
	Places bool
}

// WatchBatch is what a watcher is handed at one time.
type WatchBatch struct {
	// ID is the watcher's.
	ID int64
	// Events are ordered by revision and, within one, by operation. All events
	// of one revision that the watcher wants come in one batch. Events are
	// shared: nobody may change them.
	Events []*mvccpb.Event
	// Places are the places of events among all changes of their revision, over whichever
	// stores those are; nil unless asked for.
	Places []uint32
	// Rev is the revision for the header: that of the events when they are live,
	// the store's when they come from history.
	Rev int64
	// CompactRev, if not 0, says that history the watcher needed is compacted up
	// to there. Nothing more will come, but the watcher keeps its id, and its
	// group from making progress, until it is removed.
	CompactRev int64
}

// watcherState is how a watcher gets its events.
type watcherState uint8

const (
	// watcherSynced watchers are offered every change as it is published.
	watcherSynced watcherState = iota
	// watcherLagging watchers read history until they have caught up.
	watcherLagging
	// watcherParked watchers have had all that is resolved of their keys, of which some
	// are held exclusively. They read history when more is resolved.
	watcherParked
	// watcherEnded watchers have been told that they were overtaken by a
	// compaction.
	watcherEnded
	// watcherRemoved watchers are no longer in their group.
	watcherRemoved
)

const (
	// maxQueuedBatches and maxQueuedBytes bound what is queued for one watcher.
	// One batch is queued however large.
	maxQueuedBatches = 128
	maxQueuedBytes   = 1 << 20
	// keptQueue is the room, in batches, that an empty queue may hold on to.
	keptQueue = 2
	// eventOverhead is what a queued event counts beside its key and value.
	eventOverhead = 256
)

// watcher is one watch. hub.mu guards it, except what is immutable.
type watcher struct {
	// Immutable.
	group *Group
	id    int64
	span  keys.Span
	opts  WatchOptions
	// point says that span is one key.
	point bool

	state watcherState
	// min is the revision below which a synced watcher wants no events: it has
	// had them, or they come before its start.
	min int64
	// next is where a lagging or parked watcher goes on to read.
	next int64
	// queue holds live events, one revision in a batch. The first batch is the
	// oldest. Invariant: all its revisions are below next unless the watcher is synced.
	queue []queued
	// bytes is the size of what is in queue.
	bytes int
	// listed says that the watcher is in its group's ready list.
	listed bool
	// behind says that it is counted in its group's number of those behind.
	behind bool
	// kept is the history that is kept for a watcher that reads it because of a hold, nil for
	// others.
	kept *keptHistory

	// set and slot say where the hub has a synced watcher. set is nil if its
	// span is empty.
	set  *watcherSet
	slot int
}

// queued is the events of one revision for one watcher.
type queued struct {
	rev    int64
	events []*mvccpb.Event
	// places are those of the events, if the watcher wants them.
	places []uint32
	bytes  int
}

// place notes the place of an event, if the watcher wants it.
func (q *queued) place(w *watcher, sub uint32) {
	if w.opts.Places {
		q.places = append(q.places, sub)
	}
}

// drops reports whether the watcher's filters leave out an event.
func (w *watcher) drops(dead bool) bool {
	if dead {
		return w.opts.NoDelete
	}
	return w.opts.NoPut
}

// enqueueLocked queues e, or makes the watcher a lagging one and returns false;
// the hub has it still. hub.mu must be held.
func (w *watcher) enqueueLocked(e *liveEvent) bool {
	rev := e.c.it.mod
	size := e.bytes(w.opts.PrevKV)
	last := len(w.queue) - 1
	if last >= 0 && w.queue[last].rev == rev {
		events, err := e.event(w.opts.PrevKV)
		if err != nil {
			w.bytes -= w.queue[last].bytes
			w.group.s.hub.queued -= len(w.queue[last].events)
			w.queue = w.queue[:last]
			w.lagLocked(rev)
			return false
		}
		q := &w.queue[last]
		q.events = append(q.events, events...)
		q.place(w, e.c.it.sub)
		q.bytes += size
		w.bytes += size
		w.group.s.hub.queued += len(events)
		return true
	}
	if last >= 0 && (len(w.queue) >= maxQueuedBatches || w.bytes+size > maxQueuedBytes) {
		w.lagLocked(rev)
		return false
	}
	events, err := e.event(w.opts.PrevKV)
	if err != nil {
		w.lagLocked(rev)
		return false
	}
	q := queued{rev: rev, events: events, bytes: size}
	q.place(w, e.c.it.sub)
	w.queue = append(w.queue, q)
	w.bytes += size
	w.group.s.hub.queued += len(events)
	w.settleLocked()
	return true
}

// lagLocked makes the watcher one that reads history from revision next on,
// once its queue is empty. The caller takes it out of the hub. hub.mu must be
// held.
func (w *watcher) lagLocked(next int64) {
	w.becomeLocked(watcherLagging)
	w.next = next
	w.settleLocked()
}

// syncLocked makes the watcher, which has had everything up to the store's
// revision, one that is offered changes from next on. hub.mu must be held.
func (w *watcher) syncLocked() {
	w.becomeLocked(watcherSynced)
	w.min = w.next
	if !w.span.Empty() {
		w.group.s.hub.addLocked(w)
	}
}

// placeLocked parks or syncs the watcher, which is in no set of the hub, if it has read all
// that can be read in st, the store's state. hub.mu must be held.
func (w *watcher) placeLocked(st *state) {
	switch {
	case w.next <= st.readable(w.span):
	case st.holds.exclude(w.span):
		w.becomeLocked(watcherParked)
		w.keepLocked(st)
	default:
		w.syncLocked()
	}
}

// becomeLocked changes the watcher's state. hub.mu must be held.
func (w *watcher) becomeLocked(state watcherState) {
	h := &w.group.s.hub
	switch w.state {
	case watcherLagging:
		h.lagging--
	case watcherParked:
		delete(h.parked, w)
	case watcherSynced, watcherEnded, watcherRemoved:
	}
	switch state {
	case watcherLagging:
		h.lagging++
	case watcherParked:
		h.parked[w] = struct{}{}
	case watcherSynced, watcherEnded, watcherRemoved:
		w.releaseLocked()
	}
	w.state = state
}

// events returns the number of events in the queue. hub.mu must be held.
func (w *watcher) events() int {
	n := 0
	for i := range w.queue {
		n += len(w.queue[i].events)
	}
	return n
}

// settleLocked brings the group's accounts in line with the watcher's state.
// hub.mu must be held.
func (w *watcher) settleLocked() {
	g := w.group
	served := w.state == watcherSynced || w.state == watcherParked
	if behind := !served || len(w.queue) > 0; behind != w.behind {
		w.behind = behind
		if behind {
			g.behind++
		} else {
			g.behind--
		}
	}
	if !w.listed && (len(w.queue) > 0 || w.state == watcherLagging) {
		w.listed = true
		g.ready = append(g.ready, w)
		g.signal()
	}
}

// takeLocked removes the oldest batch from the queue and returns it. hub.mu must
// be held.
func (w *watcher) takeLocked() WatchBatch {
	q := w.queue[0]
	w.queue[0] = queued{}
	w.bytes -= q.bytes
	w.group.s.hub.queued -= len(q.events)
	switch {
	case len(w.queue) > 1:
		w.queue = w.queue[1:]
	case cap(w.queue) > keptQueue:
		w.queue = nil
	default:
		w.queue = w.queue[:0]
	}
	return WatchBatch{ID: w.id, Events: q.events, Places: q.places, Rev: q.rev}
}
