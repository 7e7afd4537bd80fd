package mvcc

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/internal/keys"
)

// Leases is what a Writer needs to know of leases and tells about them.
type Leases interface {
	// Exists reports whether there is a lease id.
	Exists(id int64) bool
	// Attach and Detach say that key now belongs, or no longer belongs, to
	// lease id. key must not be changed and may be kept.
	Attach(id int64, key []byte)
	Detach(id int64, key []byte)
}

// Opts is how one command is to be applied.
type Opts struct {
	// Number is the revision the command gets if it changes something, and the
	// store reaches in any case. 0 means the next one, if it changes something.
	// Invariant: it is 0 or above the Writer's revision.
	Number int64
	// Compacted is a revision below which the command finds no history, if that is
	// above the store's compaction revision; 0 for none.
	Compacted int64
	// Want says that somebody waits for the answer. Without it a command that is
	// not rejected answers nil.
	Want bool
}

// Writer applies the commands of one batch. Its calls see what earlier ones of
// the batch have done; readers see nothing before Publish. The order is: any
// commands, Finish, the commit of the Pebble batch, Publish. A Writer that does
// not get to Publish leaves the Store unusable until Reload.
//
// A Writer keeps the keys and values of the requests it is given, in memory and
// in the events it publishes: the caller must not change them afterwards.
type Writer struct {
	reader
	s       *Store
	batch   *pebble.Batch
	leases  Leases
	pending pending
	// run is what is still to be written of the history.
	run run
	// added and live follow the sizes of applied.added and Store.live.
	added, live int64
	// base follows state.base.
	base int64
	// reheld says that the holds are not those of the state before, and held has the exclusive keys
	// of those that came in the batch.
	reheld bool
	held   []keys.Set
	// changed says that Finish has something to write.
	changed bool

	// The running command: the revision it will have and its changes so far.
	// The reader's rev is number as soon as there is one. numbered says that the
	// number was given.
	number   int64
	numbered bool
	sub      uint32
	// killed says that a tombstone is among them.
	killed bool
}

// pending is what a batch has written so far.
type pending struct {
	// base is a revision that Pebble holds everything up to.
	base int64
	// changes are in the order in which they were made. The stamps of each key rise,
	// and, but for insertions, all do. Their items have their values, long ones too,
	// until they are published.
	changes []change
}

// dropValues takes the values that are too long to be kept in memory from the
// batch's items, before readers see them.
func (p *pending) dropValues() {
	for i := range p.changes {
		if it := p.changes[i].it; it.size > inlineValue {
			it.value = nil
		}
	}
}

// change is one step from a version of a key to the next.
type change struct {
	it *item
	// prev is the key's version before the command that made the change, nil if
	// it did not exist.
	prev *item
}

// NewWriter returns the writer of the next batch. It writes into b, which stays
// the caller's and may hold other things.
func (s *Store) NewWriter(b *pebble.Batch, leases Leases) *Writer {
	st := s.state.Load()
	w := &Writer{s: s, batch: b, leases: leases, added: st.added, live: s.live, base: st.base}
	w.pending.base = st.rev
	w.reader = reader{
		db: s.db, layout: s.layout, cur: s.cur, creations: s.creations.working(),
		rev: st.rev, top: st.rev, compact: st.compact, floor: st.compact,
		pending: &w.pending, counters: &s.counters,
	}
	return w
}

// Rev returns the revision that the commands so far have led to.
func (w *Writer) Rev() int64 { return w.rev }

// Compacted returns the compaction revision that the commands so far have led
// to, -1 if there was no compaction.
func (w *Writer) Compacted() int64 { return w.compact }

// begin starts a command. What it sees of the past ends just below its number.
func (w *Writer) begin(o Opts) {
	w.sub, w.killed = 0, false
	w.floor = w.compact
	if o.Compacted > 0 {
		w.floor = max(w.floor, o.Compacted)
	}
	w.number, w.numbered = w.rev+1, o.Number != 0
	if w.numbered {
		if o.Number <= w.rev {
			invariant.Violated("command number %d at revision %d", o.Number, w.rev)
		}
		w.Reach(o.Number - 1)
		w.number = o.Number
	}
}

// end ends a command. What has a number reaches it even if it changed nothing or
// was rejected.
func (w *Writer) end() {
	if w.numbered {
		w.Reach(w.number)
	}
}

// reached returns the revision for the header of the running command's answer.
func (w *Writer) reached() int64 {
	if w.numbered {
		return w.number
	}
	return w.rev
}

// Reach says that no change up to revision rev will come any more.
func (w *Writer) Reach(rev int64) {
	if rev > w.rev {
		w.rev = rev
		w.changed = true
	}
}

// write makes it, whose stamp it sets, the newest version of its key. old is
// the key's current version, or nil.
func (w *Writer) write(it, old *item, value []byte) error {
	it.mod, it.sub = w.number, w.sub
	w.sub++
	w.rev, w.top = max(w.rev, w.number), max(w.top, w.number)
	w.changed = true
	it.size, it.value = int32(len(value)), value
	if err := w.store(it, value); err != nil {
		return err
	}
	w.pending.changes = append(w.pending.changes, change{it: it, prev: w.before(it.key, old)})
	w.killed = w.killed || it.dead
	w.added += it.bytes()
	w.index(it, old)
	return nil
}

// store puts version it into the batch.
func (w *Writer) store(it *item, value []byte) error {
	d := w.batch.SetDeferred(w.layout.versionLen(it.key), recordLen(it))
	w.layout.appendVersion(d.Key[:0], it.key, it.mod, it.sub)
	appendRecord(d.Value[:0], it, value)
	if err := d.Finish(); err != nil {
		return err
	}
	return w.note(it.key, it.stamp())
}

// before returns what key was before the running command, given its current
// version old.
func (w *Writer) before(key []byte, old *item) *item {
	if w.sub == 1 || old != nil && old.mod != w.number || old == nil && !w.killed {
		return old
	}
	// The command has perhaps changed the key already.
	for _, c := range slices.Backward(w.pending.changes) {
		if c.it.mod != w.number {
			break
		}
		if bytes.Equal(c.it.key, key) {
			return c.prev
		}
	}
	return old
}

// index brings the trees up to version it, which follows old.
func (w *Writer) index(it, old *item) {
	if old != nil {
		w.live -= old.bytes()
	}
	if it.dead {
		w.cur.DeleteHint(it, &w.hint)
		w.s.creations.deleted(old)
		return
	}
	w.live += it.bytes()
	w.cur.SetHint(it, &w.hint)
	if old == nil {
		w.s.creations.created(it)
	}
}

// Compact makes rev the compaction revision. It only says so: Sweep removes
// what is superseded. It returns ErrCompacted for a revision that is not above
// the last compaction, ErrFutureRev for one above the newest, and ErrHeld for one
// above the bound of an exclusive hold.
func (w *Writer) Compact(rev int64) error {
	switch {
	case rev <= w.compact:
		return ErrCompacted
	case rev > w.rev:
		return ErrFutureRev
	case rev > w.s.holds.lowestBound():
		return ErrHeld
	}
	base, err := w.newestChange(rev)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	w.compact, w.floor, w.base = rev, rev, max(w.base, base)
	w.changed = true
	return nil
}

// newestChange returns the revision of the newest change up to rev that is still
// in the history, 0 if there is none.
func (w *Writer) newestChange(rev int64) (newest int64, err error) {
	for i := range w.pending.changes {
		if mod := w.pending.changes[i].it.mod; mod <= rev {
			newest = max(newest, mod)
		}
	}
	history, err := w.db.NewIter(w.layout.historyBounds(stamp{}, rev))
	if err != nil {
		return 0, err
	}
	defer func() { err = closeAfter(history, err) }()
	if !history.Last() {
		return newest, history.Error()
	}
	at, _, err := w.layout.splitHistory(history.Key())
	return max(newest, at.rev), err
}

// Finish writes what is left to write into the batch. It is called once, after
// the last command and before the commit.
func (w *Writer) Finish() error {
	if !w.changed {
		return nil
	}
	if err := w.flushHistory(); err != nil {
		return err
	}
	a := applied{rev: w.rev, compact: w.compact, added: w.added}
	if err := w.batch.Set(w.layout.meta(metaApplied), a.encode(), nil); err != nil {
		return err
	}
	if w.compact == w.s.state.Load().compact {
		return nil
	}
	return w.batch.Set(w.layout.meta(metaBase), keys.AppendInt64(nil, w.base), nil)
}

// Publish makes the batch, which has been committed, visible to new Views and
// hands its events to the watchers, at one moment.
func (w *Writer) Publish() {
	if !w.changed {
		return
	}
	s := w.s
	s.live = w.live
	old := s.state.Load()
	st := &state{
		applied: applied{rev: w.rev, compact: w.compact, added: w.added}, base: w.base,
		cur: old.cur, creations: old.creations, live: w.live, holds: old.holds,
		generation: old.generation, epoch: old.epoch,
	}
	if len(w.pending.changes) > 0 {
		if s.counters.byCreation.Load() {
			s.creations.grow(s.cur, creationsStep)
		}
		st.cur, st.creations = s.cur.Copy(), s.creations.published()
	}
	if w.reheld {
		st.holds = s.holds.copy()
	}
	if st.compact != old.compact {
		st.epoch = &epoch{compact: st.compact}
	}
	s.hub.publish(w, st)
	if st.epoch != old.epoch {
		s.sweep.epochs.push(st.epoch)
	}
}
