package mvcc

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Store is the versioned keys of one replica. The side that applies commands
// belongs to one goroutine (NewWriter and the Writer's methods, BeginReload,
// Reload); Sweep belongs to one goroutine at a time; everything else may be
// called by anybody at any moment.
type Store struct {
	db     *pebble.DB
	layout layout

	// cur, creations and holds are the working trees. They belong to the applying
	// goroutine, which publishes copies of them.
	cur       *tree
	creations creations
	holds     *holds
	// live is the logical size of the versions in cur.
	live int64

	// state is what readers see.
	state atomic.Pointer[state]
	// generation counts the replacements of the whole content.
	generation atomic.Uint64

	hub hub
	// awaiting counts those who wait in AwaitSettled.
	awaiting atomic.Int64
	sweep    sweeper
	counters counters
}

// state is one published state. It is immutable.
type state struct {
	applied
	// resolved is the revision up to which it is known that no change will come
	// any more, but to keys that are held. Other than rev it is not replicated.
	// Invariant: resolved >= rev.
	resolved int64
	holds    *holds
	// base is the revision of the newest change up to compact that there ever
	// was: whoever has seen it has missed nothing by compaction.
	base int64
	cur  *tree
	// creations is nil unless the index of them has all current keys.
	creations *creationTree
	live      int64
	// generation is the store's when the state was published.
	generation uint64
	epoch      *epoch
}

// epoch is the time between two compactions. What a reader that began in it may
// look at must not be removed.
type epoch struct {
	// compact is the compaction revision of all states of the epoch.
	compact int64
	// pins counts the readers of those states.
	pins atomic.Int64
}

// Open returns the store that lies below prefix in db, an empty one at revision
// 1 if there is none. It reads all versions once. The store keeps prefix.
func Open(db *pebble.DB, prefix []byte) (*Store, error) {
	s := &Store{db: db, layout: layout{prefix: slices.Clone(prefix)}}
	s.hub.init()
	st, err := s.load()
	if err != nil {
		return nil, err
	}
	st.holds.settle(&state{holds: newHolds()})
	s.install(st)
	return s, nil
}

// BeginReload announces that the caller is about to replace the store's content
// in Pebble. From now on reads of open Views answer ErrReplaced and watchers
// are silent, until Reload. The caller keeps Sweep from running meanwhile.
func (s *Store) BeginReload() { s.generation.Add(1) }

// Reload takes over the content that lies in Pebble now. Watchers go on from
// where they are: what they have missed they read from history, and those whose
// next revision is compacted are told so.
func (s *Store) Reload() error {
	s.generation.Add(1)
	st, err := s.load()
	if err != nil {
		return err
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	before := s.state.Load()
	// What was promised of the content that this one goes on from still holds.
	st.resolved = max(st.resolved, before.resolved)
	st.holds.settle(before)
	s.install(st)
	s.hub.rewindLocked(before.resolved, st)
	s.hub.settledLocked()
	return nil
}

// install makes st, which load returned, the store's state.
func (s *Store) install(st *state) {
	s.cur, s.creations, s.holds, s.live = st.cur.Copy(), creations{}, st.holds.copy(), st.live
	s.sweep.reset(st.epoch)
	s.state.Store(st)
}

// load reads the store's content from Pebble.
func (s *Store) load() (*state, error) {
	st := &state{
		applied: applied{rev: 1, compact: -1},
		cur:     newTree(), holds: newHolds(), generation: s.generation.Load(),
	}
	if err := readMeta(s.db, s.layout.meta(metaApplied), &st.rev, &st.compact, &st.added); err != nil {
		return nil, err
	}
	done := swept{rev: -1}
	if err := readMeta(s.db, s.layout.meta(metaSwept), &done.rev, &done.removed); err != nil {
		return nil, err
	}
	st.base = st.compact
	if err := readMeta(s.db, s.layout.meta(metaBase), &st.base); err != nil {
		return nil, err
	}
	st.resolved = st.rev
	if st.rev < 1 || st.compact > st.rev || done.rev > st.compact || done.removed > st.added {
		return nil, fmt.Errorf("load meta: rev %d, compact %d, swept %d, bytes %d - %d: %w",
			st.rev, st.compact, done.rev, st.added, done.removed, ErrCorrupt)
	}
	if err := s.loadCurrent(st); err != nil {
		return nil, err
	}
	if err := s.loadHolds(st); err != nil {
		return nil, err
	}
	st.epoch = &epoch{compact: st.compact}
	s.sweep.load(done)
	return st, nil
}

// loadCurrent fills st's tree with the newest version of each key.
func (s *Store) loadCurrent(st *state) (err error) {
	iter, err := s.db.NewIter(s.layout.versionBounds())
	if err != nil {
		return fmt.Errorf("load index: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	var head []byte
	for ok := iter.First(); ok; ok = iter.Next() {
		k := iter.Key()
		if head != nil && len(k) == len(head)+stampLen && bytes.HasPrefix(k, head) {
			continue // an older version of the key before
		}
		key, h, at, err := s.layout.splitVersion(nil, k)
		if err != nil {
			return err
		}
		head = append(head[:0], h...)
		if at.rev > st.rev {
			return fmt.Errorf("load key %q: revision %d above %d: %w", key, at.rev, st.rev, ErrCorrupt)
		}
		v, err := iter.ValueAndErr()
		if err != nil {
			return fmt.Errorf("load key %q: %w", key, err)
		}
		rec, err := decodeRecord(v)
		if err != nil {
			return fmt.Errorf("load key %q: %w", key, err)
		}
		if rec.dead {
			continue
		}
		it := newItem(key, at, rec)
		if len(rec.value) <= inlineValue {
			it.value = bytes.Clone(rec.value)
		}
		st.cur.Load(&it)
		st.live += it.bytes()
	}
	return iter.Error()
}

// newItem returns the version that rec describes, without its value.
func newItem(key []byte, at stamp, rec record) item {
	return item{
		key: key, create: rec.create, mod: at.rev, sub: at.sub, version: rec.version,
		lease: rec.lease, size: int32(len(rec.value)), dead: rec.dead,
	}
}

// Rev returns the newest published revision.
func (s *Store) Rev() int64 { return s.state.Load().rev }

// Compacted returns the compaction revision, -1 if there was no compaction.
func (s *Store) Compacted() int64 { return s.state.Load().compact }

// Resolved returns the revision up to which no change will come any more, but to keys that
// are held exclusively: Rev, or what Resolve has said.
func (s *Store) Resolved() int64 { return s.state.Load().resolved }

// ResolvedOf returns the revision up to which no change to the keys of spans, or without
// spans to any key, will come any more: Resolved, and where keys are held exclusively no
// more than was resolved when that began.
func (s *Store) ResolvedOf(spans ...keys.Span) int64 { return s.state.Load().resolvedOf(spans...) }

// HeldFrom is View.HeldFrom of the newest published state.
func (s *Store) HeldFrom(spans ...keys.Span) int64 { return s.state.Load().holds.from(spans) }

// Resolve says that no change up to revision rev will come any more, but to keys that are
// held. The caller has it from the leader, and the store has all changes and holds that
// came before.
func (s *Store) Resolve(rev int64) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	old := s.state.Load()
	if rev <= old.resolved {
		return
	}
	st := *old
	st.resolved = rev
	s.state.Store(&st)
	s.hub.awaitedLocked()
}

// Size returns the logical size in bytes of the retained versions: superseded
// ones count until Sweep has removed them.
func (s *Store) Size() int64 { return s.state.Load().added - s.sweep.removed.Load() }

// pin returns the newest published state and keeps Sweep from what it may look
// at, until unpin.
func (s *Store) pin() *state {
	for {
		st := s.state.Load()
		st.epoch.pins.Add(1)
		// Sweep gives up on an epoch when it is no longer the newest and has no
		// pins. Seeing that it still is the newest after pinning it proves that
		// Sweep will see the pin.
		if s.state.Load().epoch == st.epoch {
			return st
		}
		st.epoch.pins.Add(-1)
	}
}

func (st *state) unpin() { st.epoch.pins.Add(-1) }

// epochs is the list of epochs that may still have readers, oldest first.
// Invariant: it ends in the newest state's epoch.
type epochs struct {
	mu   sync.Mutex
	list []*epoch
}

// bound returns the revision up to which superseded versions are out of every
// reader's sight.
func (e *epochs) bound() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.list) > 1 && e.list[0].pins.Load() == 0 {
		e.list = e.list[1:]
	}
	return e.list[0].compact
}

// push adds the epoch of a state that has just been published. Not earlier:
// until then readers may still pin the epoch before.
func (e *epochs) push(next *epoch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, next)
}
