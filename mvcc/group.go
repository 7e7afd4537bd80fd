package mvcc

import (
	"fmt"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/internal/keys"
)

// Group is the watchers of one client stream. They share one wake-up: whoever
// serves the stream waits for Ready, then calls Poll until it has nothing.
// Ready and Poll are for one goroutine; the rest may be called by anybody.
type Group struct {
	s *Store
	// notify is called when Poll may have something. hub.mu is held.
	notify func()
	// wake has room for one signal; nil where somebody else is notified.
	wake chan struct{}

	// hub.mu guards all below.

	watchers map[int64]*watcher
	// ready lists the watchers for which Poll has something to do, in turn.
	ready []*watcher
	// behind is the number of watchers that have not been handed everything up
	// to the store's revision.
	behind int
	// future holds the watchers whose start had not been reached when last
	// looked at.
	future map[*watcher]struct{}
	closed bool
}

// NewGroup returns a group without watchers.
func (s *Store) NewGroup() *Group {
	wake := make(chan struct{}, 1)
	g := s.NewNotifyingGroup(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	g.wake = wake
	return g
}

// NewNotifyingGroup returns a group without watchers that calls notify instead of
// making Ready readable. notify must neither block nor call the store.
func (s *Store) NewNotifyingGroup(notify func()) *Group {
	g := &Group{s: s, notify: notify, watchers: make(map[int64]*watcher)}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.groups[g] = struct{}{}
	return g
}

// Add starts a watcher, under an id that is free in the group, and returns the
// revision of its registration: the one that the store has resolved, or without a start
// o.After if that is higher. The watcher will be handed every event from its start on, or
// from the revision after the registration if it has none; it needs no history then. A
// negative start is for the caller to refuse; here it means the beginning of history. In a
// closed group Add does nothing.
func (g *Group) Add(id int64, o WatchOptions) (rev int64) {
	h := &g.s.hub
	w := &watcher{group: g, id: id, opts: o, span: keys.FromRange(o.Key, o.End), point: len(o.End) == 0}
	h.mu.Lock()
	defer h.mu.Unlock()
	st := g.s.state.Load()
	resolved := st.resolvedOf(w.span)
	rev = resolved
	w.next = max(o.Start, 1)
	if o.Start == 0 {
		rev = max(o.After, resolved)
		w.next = rev + 1
	}
	if g.closed {
		return rev
	}
	if g.watchers[id] != nil {
		invariant.Violated("watcher id %d is taken", id)
	}
	g.watchers[id] = w
	if w.next <= resolved {
		w.lagLocked(w.next)
		return rev
	}
	if o.Start > 0 {
		if g.future == nil {
			g.future = make(map[*watcher]struct{})
		}
		g.future[w] = struct{}{}
	}
	w.placeLocked(st)
	return rev
}

// Remove ends the watcher with that id and reports whether there was one. Poll
// may be about to return a batch for it.
func (g *Group) Remove(id int64) bool {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	w := g.watchers[id]
	if w == nil {
		return false
	}
	g.removeLocked(w)
	return true
}

// removeLocked takes w out of everything. hub.mu must be held.
func (g *Group) removeLocked(w *watcher) {
	if w.set != nil {
		g.s.hub.removeLocked(w)
	}
	w.becomeLocked(watcherRemoved)
	g.s.hub.queued -= w.events()
	w.queue = nil
	if w.behind {
		g.behind--
	}
	delete(g.future, w)
	delete(g.watchers, w.id)
}

// Close removes all watchers and forgets the group.
func (g *Group) Close() {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	g.closed = true
	for _, w := range g.watchers {
		g.removeLocked(w)
	}
	g.ready = nil
	delete(h.groups, g)
	delete(h.awaiting, g)
	delete(h.held, g)
}

// Ready returns a channel from which can be received when Poll may have
// something. One receive stands for any number of batches.
func (g *Group) Ready() <-chan struct{} { return g.wake }

func (g *Group) signal() { g.notify() }

// resolvedLocked returns the revision that the store has resolved for all that the group
// watches. hub.mu must be held.
func (g *Group) resolvedLocked() int64 {
	st := g.s.state.Load()
	rev := st.resolved
	if st.holds.len() > 0 {
		for _, w := range g.watchers {
			rev = min(rev, st.resolvedOf(w.span))
		}
	}
	return rev
}

// Await reports whether the store has resolved rev for all that the group watches. If not, the group is woken when it
// has, or before: of several revisions that are waited for it is woken at the lowest,
// and who waits for another asks again.
func (g *Group) Await(rev int64) bool {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.closed || g.resolvedLocked() >= rev && g.s.loaded() {
		return true
	}
	if lowest, ok := h.awaiting[g]; !ok || rev < lowest {
		h.awaiting[g] = rev
	}
	return false
}

// Held reports whether transactions hold keys of the store: what a watcher lacks, or how far it is, may be settled with them. If so, the
// group is woken when the holds have changed.
func (g *Group) Held() bool {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.closed || g.s.state.Load().holds.len() == 0 {
		return false
	}
	h.held[g] = struct{}{}
	return true
}

// Empty reports whether the group has no watchers.
func (g *Group) Empty() bool {
	g.s.hub.mu.Lock()
	defer g.s.hub.mu.Unlock()
	return len(g.watchers) == 0
}

// Progress returns the revision that the store has resolved for all that the group watches, if
// every watcher of it has been handed everything up to it by Poll and has started by then. It returns false
// if not, and for a group without watchers.
func (g *Group) Progress() (rev int64, ok bool) {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	rev = g.resolvedLocked()
	for w := range g.future {
		if w.opts.Start <= rev {
			delete(g.future, w)
		}
	}
	return rev, g.behind == 0 && len(g.future) == 0 && len(g.watchers) > 0 && g.s.loaded() && g.startedLocked(rev)
}

// startedLocked reports whether no watcher that is not in future starts behind rev, the revision that is resolved for all: one
// may have started where only keys of others are held. hub.mu must be held.
func (g *Group) startedLocked(rev int64) bool {
	if g.s.state.Load().holds.len() > 0 {
		for _, w := range g.watchers {
			if w.opts.Start > rev {
				return false
			}
		}
	}
	return true
}

// ProgressOf is Progress of one watcher: those beside it don't count.
func (g *Group) ProgressOf(id int64) (rev int64, ok bool) {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	st := g.s.state.Load()
	w := g.watchers[id]
	if w == nil {
		return st.resolved, false
	}
	rev = st.resolvedOf(w.span)
	return rev, !w.behind && w.opts.Start <= rev && g.s.loaded()
}

// Poll returns the next batch of one of the watchers, or false if there is none
// now. Watchers take turns. Poll never waits for anything but the disk. An error
// is a fault of storage.
func (g *Group) Poll() (WatchBatch, bool, error) {
	h := &g.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(g.ready) > 0 && g.s.loaded() {
		w := g.ready[0]
		g.ready[0] = nil
		g.ready = g.ready[1:]
		w.listed = false
		if w.state == watcherRemoved {
			continue
		}
		b, ok, err := g.pollLocked(w)
		if w.state != watcherRemoved {
			w.settleLocked()
		}
		if ok || err != nil {
			return b, ok, err
		}
	}
	return WatchBatch{}, false, nil
}

// pollLocked returns the next batch of w, if there is one. hub.mu must be held;
// it is released while history is read.
func (g *Group) pollLocked(w *watcher) (WatchBatch, bool, error) {
	if len(w.queue) > 0 {
		return w.takeLocked(), true, nil
	}
	if w.state != watcherLagging {
		return WatchBatch{}, false, nil
	}
	st := g.s.pin()
	defer st.unpin()
	have := keptHistory{epoch: st.epoch, compact: st.compact, base: st.base}
	if w.kept != nil {
		have = *w.kept
		have.epoch.pins.Add(1)
		defer have.epoch.pins.Add(-1)
	}
	if w.next < have.compact && w.next <= have.base {
		w.becomeLocked(watcherEnded)
		return WatchBatch{ID: w.id, CompactRev: st.compact}, true, nil
	}
	c := catchUp{s: g.s, compact: have.compact, w: w, from: w.next, to: st.readable(w.span)}
	if w.next <= c.to {
		g.s.hub.mu.Unlock()
		err := c.run()
		g.s.hub.mu.Lock()
		if g.s.generation.Load() != st.generation || w.state == watcherRemoved {
			return WatchBatch{}, false, nil
		}
		if err != nil {
			return WatchBatch{}, false, fmt.Errorf("read history of [%q, %q) from %d: %w", w.opts.Key, w.opts.End, w.next, err)
		}
		w.next = c.from
	}
	w.placeLocked(g.s.state.Load())
	return WatchBatch{ID: w.id, Events: c.events, Places: c.places, Rev: st.resolvedOf(w.span)}, len(c.events) > 0, nil
}

// loaded reports whether the state is that of the content in Pebble.
func (s *Store) loaded() bool { return s.state.Load().generation == s.generation.Load() }
