package mvcc

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// sweeper removes what compaction has made superfluous.
type sweeper struct {
	epochs epochs
	// removed is swept.removed as of the last commit.
	removed atomic.Int64
	// done is swept.rev as of the last commit.
	done atomic.Int64

	// mu makes Sweep exclude itself and Reload. It guards all below.
	mu sync.Mutex
	// bound is the revision that the last sweep went for.
	bound int64
	// next is the place in history from which to go on. Invariant: nothing is
	// left to remove for that bound because of changes before it.
	next stamp
}

// load takes over what Pebble says of earlier sweeps.
func (w *sweeper) load(s swept) {
	w.removed.Store(s.removed)
	w.done.Store(s.rev)
}

// reset begins anew with one epoch.
func (w *sweeper) reset(e *epoch) {
	w.mu.Lock()
	w.bound = w.done.Load()
	w.next = stamp{rev: w.bound}
	w.mu.Unlock()
	w.epochs.mu.Lock()
	w.epochs.list = []*epoch{e}
	w.epochs.mu.Unlock()
}

// SweepDone reports whether everything that a compaction at rev made
// superfluous has been removed.
func (s *Store) SweepDone(rev int64) bool { return s.sweep.done.Load() >= rev }

// Sweep removes some of the versions that compaction has made superfluous:
// those below the compaction revision that a newer one up to it supersedes, and
// tombstones below it. It looks at limit changes at the most, and the rest of a command's
// that it has begun with, and commits what it removes in a batch of its own, unsynced. It reports whether nothing is left
// to do. Versions that an open View may read stay for now; with nothing to do
// but them it removes nothing and reports false.
//
// Versions at the compaction revision itself stay, superseded or not: a watch
// from there sees every change of that revision.
//
// Sweep runs beside everything else except BeginReload to Reload. It may be
// stopped by a crash at any moment.
func (s *Store) Sweep(limit int) (done bool, err error) {
	w := &s.sweep
	w.mu.Lock()
	defer w.mu.Unlock()
	bound := w.epochs.bound()
	if bound != w.bound {
		// What had to stay at the last bound may have to go now.
		w.bound, w.next.sub = bound, 0
	}
	if bound > w.done.Load() {
		r := sweepRun{s: s, bound: bound, next: w.next, batch: s.db.NewBatch()}
		defer func() { err = closeAfter(r.batch, err) }()
		finished, err := r.run(limit)
		if err != nil {
			return false, fmt.Errorf("sweep: %w", err)
		}
		out := swept{rev: w.done.Load(), removed: w.removed.Load() + r.removed}
		if finished {
			out.rev = bound
			r.next = stamp{rev: bound}
		}
		if err := r.commit(out); err != nil {
			return false, fmt.Errorf("sweep: %w", err)
		}
		w.load(out)
		s.counters.swept.Add(r.versions)
		w.next = r.next
	}
	return w.done.Load() >= s.state.Load().compact, nil
}

// sweepRun is one call of Sweep.
type sweepRun struct {
	s     *Store
	bound int64
	batch *pebble.Batch
	// next follows the last change that was dealt with.
	next stamp
	// removed is the logical size of the versions removed and versions their number.
	removed, versions int64
	buf               []byte
}

// run walks history from r.next to the bound, for at most limit changes and the rest
// of an entry, and reports whether it got there. Each change makes the versions before
// it superfluous, so that history leads to all there is to remove.
func (r *sweepRun) run(limit int) (finished bool, err error) {
	l := r.s.layout
	h, err := openHistory(r.s.db, l, r.next, r.bound)
	if err != nil {
		return false, err
	}
	defer func() { err = closeAfter(h, err) }()
	versions, err := r.s.db.NewIter(l.versionBounds())
	if err != nil {
		return false, err
	}
	defer func() { err = closeAfter(versions, err) }()
	begun := false // within an entry
	for h.next() {
		if limit--; limit < 0 && !begun {
			return false, nil
		}
		if err := r.change(versions, h.key, h.at); err != nil {
			return false, err
		}
		r.next = h.at.next()
		if begun = h.left > 0; begun {
			continue
		}
		if h.at.rev < r.bound {
			if err := r.batch.Delete(h.iter.Key(), nil); err != nil {
				return false, err
			}
		}
	}
	return h.err == nil, h.err
}

// change removes what the change of key at at makes superfluous: the version
// before it, and itself if it is a tombstone. What comes before those has gone
// when their own changes were looked at, or goes with them in this batch.
func (r *sweepRun) change(versions *pebble.Iterator, key []byte, at stamp) error {
	r.buf = r.s.layout.appendVersion(r.buf[:0], key, at.rev, at.sub)
	head := r.buf[:len(r.buf)-stampLen]
	if !versions.SeekGE(r.buf) || !bytes.Equal(versions.Key(), r.buf) {
		if err := versions.Error(); err != nil {
			return err
		}
		return fmt.Errorf("key %q at %d: no version: %w", key, at.rev, ErrCorrupt)
	}
	if at.rev < r.bound {
		if err := r.remove(versions, key, at, true); err != nil {
			return err
		}
	}
	if !versions.Next() {
		return versions.Error()
	}
	k := versions.Key()
	if len(k) != len(r.buf) || !bytes.HasPrefix(k, head) {
		return nil
	}
	if prev := stampDesc(k[len(head):]); prev.rev < r.bound {
		return r.remove(versions, key, prev, false)
	}
	return nil
}

// remove removes the version that versions stands on, if it is a tombstone or
// not as dead says.
func (r *sweepRun) remove(versions *pebble.Iterator, key []byte, at stamp, dead bool) error {
	b, err := versions.ValueAndErr()
	if err != nil {
		return err
	}
	rec, err := decodeRecord(b)
	if err != nil {
		return fmt.Errorf("key %q at %d: %w", key, at.rev, err)
	}
	if rec.dead != dead {
		return nil
	}
	it := newItem(key, at, rec)
	r.removed += it.bytes()
	r.versions++
	return r.batch.Delete(versions.Key(), nil)
}

func (r *sweepRun) commit(out swept) error {
	if err := r.batch.Set(r.s.layout.meta(metaSwept), out.encode(), nil); err != nil {
		return err
	}
	return r.batch.Commit(pebble.NoSync)
}
