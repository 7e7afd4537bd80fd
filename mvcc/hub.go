package mvcc

import (
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/pkg/v3/adt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// hub matches the changes of each published batch with the watchers that have
// seen everything before it.
type hub struct {
	// mu guards all below, the groups and watchers of the store, and the moment
	// at which a state is published.
	mu     sync.Mutex
	groups map[*Group]struct{}
	// points and ranges hold the synced watchers, by what they watch.
	points map[string]*watcherSet
	ranges adt.IntervalTree
	// parked holds the parked watchers.
	parked map[*watcher]struct{}
	// synced is the number of watchers in points and ranges, lagging that of the
	// lagging ones, and queued the number of events in the queues of all.
	synced, lagging, queued int
	// awaiting are the groups that want to be woken once the store has resolved a
	// revision.
	awaiting map[*Group]int64
	// held are the groups that want to be woken once holds have changed.
	held map[*Group]struct{}
	// settled is closed when holds have changed; nil until somebody waits for that.
	settled chan struct{}
	// overflowed are the watchers whose queues the running publish has found
	// full. They are still in points and ranges.
	overflowed []*watcher
}

func (h *hub) init() {
	h.groups = make(map[*Group]struct{})
	h.points = make(map[string]*watcherSet)
	h.awaiting = make(map[*Group]int64)
	h.held = make(map[*Group]struct{})
	h.parked = make(map[*watcher]struct{})
	h.ranges = adt.NewIntervalTree()
}

// watcherSet is the synced watchers of one span.
type watcherSet struct {
	list []*watcher
}

func (s *watcherSet) add(w *watcher) {
	w.set, w.slot = s, len(s.list)
	s.list = append(s.list, w)
}

func (s *watcherSet) remove(w *watcher) {
	last := s.list[len(s.list)-1]
	s.list[w.slot] = last
	last.slot = w.slot
	s.list[len(s.list)-1] = nil
	s.list = s.list[:len(s.list)-1]
	w.set = nil
}

// interval returns s for the interval tree, for which no bytes are the highest
// bound on either side. No key is lower than a zero byte.
func interval(s keys.Span) adt.Interval {
	if len(s.Start) == 0 {
		s.Start = []byte{0}
	}
	return adt.NewStringAffineInterval(string(s.Start), string(s.End))
}

// addLocked makes w, whose span is not empty, one that publish finds. h.mu must
// be held.
func (h *hub) addLocked(w *watcher) {
	h.synced++
	if w.point {
		set := h.points[string(w.span.Start)]
		if set == nil {
			set = &watcherSet{}
			h.points[string(w.span.Start)] = set
		}
		set.add(w)
		return
	}
	at := interval(w.span)
	if v := h.ranges.Find(at); v != nil {
		if set, ok := v.Val.(*watcherSet); ok {
			set.add(w)
			return
		}
	}
	set := &watcherSet{}
	set.add(w)
	h.ranges.Insert(at, set)
}

// removeLocked undoes addLocked. h.mu must be held.
func (h *hub) removeLocked(w *watcher) {
	h.synced--
	set := w.set
	set.remove(w)
	if len(set.list) > 0 {
		return
	}
	if w.point {
		delete(h.points, string(w.span.Start))
	} else {
		h.ranges.Delete(interval(w.span))
	}
}

// publish makes st the state that readers see, with what has been resolved, and
// queues the changes of w's batch for the synced watchers.
func (h *hub) publish(w *Writer, st *state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := w.s.state.Load()
	st.resolved = max(old.resolved, st.rev)
	if h.synced > 0 {
		for _, set := range w.held {
			h.retireLocked(set, old)
		}
		for i := range w.pending.changes {
			h.dispatchLocked(w, &w.pending.changes[i])
		}
		for _, o := range h.overflowed {
			h.removeLocked(o)
		}
		clear(h.overflowed)
		h.overflowed = h.overflowed[:0]
	}
	w.pending.dropValues()
	if st.epoch != old.epoch {
		h.compactedLocked(old.epoch)
	}
	if w.reheld {
		st.holds.settle(old)
	}
	w.s.state.Store(st)
	if w.reheld {
		h.reviewLocked(st)
		h.settledLocked()
	} else {
		h.changedLocked(old, st)
	}
	h.awaitedLocked()
}

// awaitedLocked wakes the groups for which what they wait for is resolved. h.mu must be
// held.
func (h *hub) awaitedLocked() {
	for g, want := range h.awaiting {
		if want <= g.resolvedLocked() {
			delete(h.awaiting, g)
			g.signal()
		}
	}
}

// dispatchLocked queues change c for those who watch its key. h.mu must be held.
func (h *hub) dispatchLocked(w *Writer, c *change) {
	e := liveEvent{w: w, c: c}
	if set := h.points[string(c.it.key)]; set != nil {
		h.offerLocked(set, &e)
	}
	if h.ranges.Len() == 0 {
		return
	}
	at := adt.NewStringAffinePoint(string(c.it.key))
	h.ranges.Visit(at, func(v *adt.IntervalValue) bool {
		if set, ok := v.Val.(*watcherSet); ok {
			h.offerLocked(set, &e)
		}
		return true
	})
}

// offerLocked queues e for the watchers of set. h.mu must be held.
func (h *hub) offerLocked(set *watcherSet, e *liveEvent) {
	for _, w := range set.list {
		if w.state != watcherSynced || e.c.it.mod < w.min || w.drops(e.c.it.dead) {
			continue
		}
		if !w.enqueueLocked(e) {
			h.overflowed = append(h.overflowed, w)
		}
	}
}

// rewindLocked makes every watcher read history from where it is, after the content of the
// store has been replaced by st. before is the revision up to which synced watchers
// had been served. h.mu must be held.
func (h *hub) rewindLocked(before int64, st *state) {
	for g := range h.groups {
		for _, w := range g.watchers {
			w.releaseLocked()
			switch w.state {
			case watcherSynced:
				if w.set != nil {
					h.removeLocked(w)
				}
				w.lagLocked(max(w.min, before+1))
			case watcherParked:
				w.lagLocked(w.next)
			case watcherLagging, watcherEnded, watcherRemoved:
				continue
			}
			w.placeLocked(st)
			w.settleLocked()
		}
		g.signal()
	}
}

// liveEvent is a change on its way to watchers. It builds what they get once
// for all of them.
type liveEvent struct {
	w *Writer
	c *change
	// plain and full hold the event without and with the previous version, in
	// slices that can't grow in place.
	plain, full []*mvccpb.Event
}

// bytes is what the event counts in a queue.
func (e *liveEvent) bytes(prev bool) int {
	n := len(e.c.it.key) + int(e.c.it.size) + eventOverhead
	if prev && e.c.prev != nil {
		n += int(e.c.prev.size)
	}
	return n
}

// event returns the event, with the previous version if prev. It fails if that
// can't be read.
func (e *liveEvent) event(prev bool) ([]*mvccpb.Event, error) {
	if e.plain == nil {
		e.plain = []*mvccpb.Event{e.build()}
	}
	if !prev || e.c.prev == nil || e.created() {
		return e.plain, nil
	}
	if e.full == nil {
		kv, err := e.w.kv(e.c.prev)
		if err != nil {
			return nil, err
		}
		e.full = []*mvccpb.Event{{Type: e.plain[0].Type, Kv: e.plain[0].Kv, PrevKv: kv}}
	}
	return e.full, nil
}

// created reports whether the event is the beginning of a key.
func (e *liveEvent) created() bool { return !e.c.it.dead && e.c.it.create == e.c.it.mod }

func (e *liveEvent) build() *mvccpb.Event {
	ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{}}
	e.c.it.fill(ev.Kv)
	if e.c.it.dead {
		ev.Type = mvccpb.Event_DELETE
		return ev
	}
	ev.Kv.Value = e.c.it.value
	return ev
}
