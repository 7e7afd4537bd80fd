package mvcc

import (
	"go.etcd.io/etcd/pkg/v3/adt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// retireLocked makes the synced watchers of keys in set, which a batch that is being
// published has held exclusively, read history: a change to them may come in below others
// that watchers would be offered before it. They have been served up to what st, the state before,
// has resolved. h.mu must be held.
func (h *hub) retireLocked(set keys.Set, st *state) {
	for _, met := range h.watching(set) {
		for len(met.list) > 0 {
			w := met.list[len(met.list)-1]
			h.removeLocked(w)
			w.lagLocked(max(w.min, st.resolved+1))
			w.keepLocked(st)
		}
	}
}

// keptHistory is what Sweep leaves of history for a watcher that has had everything when a hold made
// it read history: a compaction that comes before it has read on must not take what it would have been offered.
// It is left until the watcher has caught up, or until the next compaction but one.
type keptHistory struct {
	// epoch is pinned, and compact and base are those of a state of it.
	epoch         *epoch
	compact, base int64
}

// keepLocked keeps history from st, the newest state, on for the watcher. hub.mu must be held.
func (w *watcher) keepLocked(st *state) {
	if w.kept == nil {
		st.epoch.pins.Add(1)
		w.kept = &keptHistory{epoch: st.epoch, compact: st.compact, base: st.base}
	}
}

// releaseLocked ends what keepLocked began. hub.mu must be held.
func (w *watcher) releaseLocked() {
	if w.kept != nil {
		w.kept.epoch.pins.Add(-1)
		w.kept = nil
	}
}

// compactedLocked lets go of the history that is kept since before last, the epoch that a compaction has just
// ended. h.mu must be held.
func (h *hub) compactedLocked(last *epoch) {
	for g := range h.groups {
		for _, w := range g.watchers {
			if w.kept != nil && w.kept.epoch != last {
				w.releaseLocked()
			}
		}
	}
}

// watching returns the synced watchers of keys in set. A set of watchers may be there more
// than once. h.mu must be held.
func (h *hub) watching(set keys.Set) (met []*watcherSet) {
	for _, span := range set {
		if span.IsPoint() {
			if s := h.points[string(span.Start)]; s != nil {
				met = append(met, s)
			}
		} else {
			for key, s := range h.points {
				if span.Contains([]byte(key)) {
					met = append(met, s)
				}
			}
		}
		h.ranges.Visit(interval(span), func(v *adt.IntervalValue) bool {
			if s, ok := v.Val.(*watcherSet); ok {
				met = append(met, s)
			}
			return true
		})
	}
	return met
}

// nextSettled returns what is closed when holds have changed.
func (h *hub) nextSettled() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settled == nil {
		h.settled = make(chan struct{})
	}
	return h.settled
}

// settledLocked wakes those who wait for holds to change. h.mu must be held.
func (h *hub) settledLocked() {
	for g := range h.held {
		g.signal()
	}
	clear(h.held)
	if h.settled != nil {
		close(h.settled)
		h.settled = nil
	}
}

// reviewLocked has parked watchers read history that can read more in st, which has just
// been published. h.mu must be held.
func (h *hub) reviewLocked(st *state) {
	for w := range h.parked {
		if w.next <= st.readable(w.span) || !st.holds.exclude(w.span) {
			w.lagLocked(w.next)
		}
	}
}

// changedLocked is reviewLocked for a state with the holds of the one before, which comes with changes: where a hold is from a
// revision on that was not resolved yet, what others change up to there is for the parked watchers. h.mu must be held.
func (h *hub) changedLocked(old, st *state) {
	if len(h.parked) == 0 || st.resolved == old.resolved {
		return
	}
	if st.holds.since(old.resolved) {
		h.reviewLocked(st)
	}
}
