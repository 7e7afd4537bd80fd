package router

import (
	"slices"
	"sync"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// WatchGroup is the watchers of one client stream. A watcher of keys of one shard is
// one of that shard's store. One of keys of several is a piece in each of them, whose
// events are merged by revision (watch_merge.go).
//
// One goroutine calls its methods.
type WatchGroup struct {
	r *Router
	// wake has room for one signal.
	wake chan struct{}
	// shared has the watchers of one shard each, by shard.
	shared  map[*shard.Data]*feed
	watches map[int64]watching
	// ended are the watchers that a compaction ended before they began, which have not
	// been told.
	ended []mvcc.WatchBatch

	mu sync.Mutex
	// ready are the feeds that may have something, in turn; protected by mu.
	ready []*feed
}

// watching is a watcher: where its events come from.
type watching struct {
	// feed is where a watcher of one shard has them from, nil for others.
	feed *feed
	// merged is what a watcher of several shards is made of, nil for others. One that a
	// compaction ended before it began has neither.
	merged *merged
}

// feed is a group of watchers of one store.
type feed struct {
	g     *WatchGroup
	d     *shard.Data
	group *mvcc.Group
	// merged is the watcher that the feed is a piece of, nil for a shared one.
	merged *merged
	// listed says that the feed is in the group's ready list; protected by the group's
	// mu.
	listed bool
}

// NewWatchGroup returns the watchers of one client stream.
func (r *Router) NewWatchGroup() *WatchGroup {
	return &WatchGroup{
		r: r, wake: make(chan struct{}, 1),
		shared: make(map[*shard.Data]*feed), watches: make(map[int64]watching),
	}
}

func (g *WatchGroup) newFeed(d *shard.Data, m *merged) *feed {
	f := &feed{g: g, d: d, merged: m}
	f.group = d.Store().NewNotifyingGroup(f.notify)
	return f
}

// notify puts the feed on the ready list. The store calls it with a lock held.
func (f *feed) notify() {
	f.g.mu.Lock()
	if !f.listed {
		f.listed = true
		f.g.ready = append(f.g.ready, f)
	}
	f.g.mu.Unlock()
	f.g.signal()
}

func (g *WatchGroup) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// next takes the feed whose turn it is off the ready list, nil if there is none.
func (g *WatchGroup) next() *feed {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ready) == 0 {
		return nil
	}
	f := g.ready[0]
	g.ready[0] = nil
	g.ready = g.ready[1:]
	f.listed = false
	return f
}

// Ready returns a channel from which can be received when Poll may have something,
// or when Progress that was put off may be asked for again.
func (g *WatchGroup) Ready() <-chan struct{} { return g.wake }

// Add starts a watcher under an id that is free in the group and returns the revision
// for the header of its created answer: an issued one, no lower than any that clients
// have seen from this node. The map covers the whole keyspace before a node serves.
func (g *WatchGroup) Add(id int64, o mvcc.WatchOptions) (rev int64) {
	parts, err := g.r.parts(keys.FromRange(o.Key, o.End))
	if err != nil {
		invariant.Violated("watch of [%q, %q): %v", o.Key, o.End, err)
	}
	now := g.r.shown.Load()
	for _, p := range parts {
		now = max(now, p.d.Store().Resolved())
	}
	// The stores may be further by the time that they have the watcher.
	o.After = now
	compacted := g.r.system.State().Order.Compacted
	o.Compacted = compacted
	switch {
	case o.Start > 0 && o.Start < compacted:
		g.watches[id] = watching{}
		g.ended = append(g.ended, mvcc.WatchBatch{ID: id, CompactRev: compacted})
		g.signal()
	case len(parts) == 1:
		f := g.shared[parts[0].d]
		if f == nil {
			f = g.newFeed(parts[0].d, nil)
			g.shared[parts[0].d] = f
		}
		g.watches[id] = watching{feed: f}
		now = max(now, f.group.Add(id, o))
	default:
		m, added := g.newMerged(id, parts, o)
		g.watches[id] = watching{merged: m}
		now = max(now, added)
	}
	raiseTo(&g.r.shown, now)
	return now
}

// Remove ends a watcher, of which Poll then returns nothing more; it reports whether
// there was one.
func (g *WatchGroup) Remove(id int64) bool {
	w, ok := g.watches[id]
	delete(g.watches, id)
	g.ended = slices.DeleteFunc(g.ended, func(b mvcc.WatchBatch) bool { return b.ID == id })
	switch {
	case w.feed != nil:
		w.feed.group.Remove(id)
	case w.merged != nil:
		w.merged.close()
	}
	return ok
}

// Close ends all watchers.
func (g *WatchGroup) Close() {
	for id := range g.watches {
		g.Remove(id)
	}
	for _, f := range g.shared {
		f.group.Close()
	}
}

// Poll returns the next batch of one of the watchers, or false if there is none now.
// It never waits for anything but the disk. An error is a fault of storage.
func (g *WatchGroup) Poll() (mvcc.WatchBatch, bool, error) {
	for {
		if len(g.ended) > 0 {
			b := g.ended[0]
			g.ended = g.ended[1:]
			return b, true, nil
		}
		f := g.next()
		if f == nil {
			return mvcc.WatchBatch{}, false, nil
		}
		b, ok, err := f.poll()
		if err != nil {
			return b, false, err
		}
		if ok {
			f.notify() // there may be more
			raiseTo(&g.r.shown, b.Rev)
			return b, true, nil
		}
	}
}

func (f *feed) poll() (mvcc.WatchBatch, bool, error) {
	if f.merged == nil {
		return f.group.Poll()
	}
	return f.merged.poll()
}

// Progress returns a revision up to which every watcher of the group has been handed
// everything, and which is not below what clients have seen from this node. It
// returns false while one of them lags, starts in the future or has ended, and where
// there is none; later says that Ready tells when it is worth asking again, since that may be so only for what transactions
// hold.
func (g *WatchGroup) Progress() (rev int64, ok, later bool) {
	p := g.progress()
	for _, w := range g.watches {
		switch {
		case w.merged != nil:
			p.merged(w.merged)
		case w.feed == nil:
			p.never = true
		}
	}
	for _, f := range g.shared {
		if !f.group.Empty() {
			p.shared(f, f.group.Progress)
		}
	}
	return g.told(p.result(len(g.watches) > 0))
}

// ProgressOf is Progress of the watcher id alone.
func (g *WatchGroup) ProgressOf(id int64) (rev int64, ok, later bool) {
	p := g.progress()
	switch w := g.watches[id]; {
	case w.feed != nil:
		p.shared(w.feed, func() (int64, bool) { return w.feed.group.ProgressOf(id) })
	case w.merged != nil:
		p.merged(w.merged)
	default:
		p.never = true
	}
	return g.told(p.result(true))
}

// told takes note of progress that clients are told.
func (g *WatchGroup) told(rev int64, ok, later bool) (int64, bool, bool) {
	if ok {
		raiseTo(&g.r.shown, rev)
	}
	return rev, ok, later
}

// progress collects how far some watchers are.
type progress struct {
	// target is the lowest revision worth telling.
	target int64
	// rev is the lowest that was met so far, -1 before the first.
	rev int64
	// never says that there will be none, and later that there will.
	never, later bool
}

func (g *WatchGroup) progress() *progress { return &progress{target: g.r.shown.Load(), rev: -1} }

// add adds what some watchers of a feed say of themselves when their shard is as far as
// the target. It reports whether they say anything.
func (p *progress) add(f *feed, of func() (rev int64, ok bool)) bool {
	if !f.await(p.target) {
		p.later = true
		return true
	}
	// Not earlier: there may be events from before.
	rev, ok := of()
	if !ok && f.group.Held() {
		p.later = true // with what is held it may turn out that there is nothing in the way
		return true
	}
	if ok && (p.rev < 0 || rev < p.rev) {
		p.rev = rev
	}
	return ok
}

// shared adds watchers of one shard.
func (p *progress) shared(f *feed, of func() (rev int64, ok bool)) {
	if !p.add(f, of) {
		p.never = true
	}
}

// merged adds a watcher of several shards. Events that it holds, or has still to take,
// come before.
func (p *progress) merged(m *merged) {
	if m.ended || m.future(p.target) {
		p.never = true
		return
	}
	for _, piece := range m.pieces {
		of := func() (int64, bool) { return piece.feed.group.ProgressOf(pieceID) }
		if len(piece.held) > 0 || !p.add(piece.feed, of) {
			p.later = true
		}
	}
}

func (p *progress) result(watched bool) (rev int64, ok, later bool) {
	switch {
	case !watched || p.never:
		return 0, false, false
	case p.later || p.rev < 0:
		return 0, false, p.later
	default:
		return p.rev, true, false
	}
}

// await reports whether the feed's store has resolved rev, an issued revision. If not,
// it is asked for, and the group is woken when it has.
func (f *feed) await(rev int64) bool {
	if f.group.Await(rev) {
		return true
	}
	f.g.r.promiser.want(f.d, rev)
	return false
}

// want asks for rev to be resolved, unless it is.
func (f *feed) want(rev int64) {
	if f.d.Store().Resolved() < rev {
		f.g.r.promiser.want(f.d, rev)
	}
}
