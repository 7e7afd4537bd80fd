package lease

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A lease's record lies on one shard, its home. Keys that lie elsewhere hang on a
// shadow of the lease there, and the home knows every shard that may have one:
//
//	home:   Register    the shard is told of the end
//	shard:  MakeShadow        the shadow, with the incarnation that the home named
//	home:   SetEnding   final; nothing registers any more
//	shard:  Drop        the shadow and its keys go, a tombstone stays
//	home:   Revoke      the record goes
//
// Where the keys go together, in one transaction over the shards, the keys of an ending lease are
// intact until then: the home deletes its own and SetEnding says so, and the shards drop theirs.
//
// The tombstone keeps what was registered before the end and applies after it from
// making the shadow again. It is not needed any more when no such command can come.

// ErrEnding is returned for a lease whose end is decided and under way.
var ErrEnding = errors.New("lease: ending")

// Ref names one grant of a lease.
type Ref struct {
	ID          int64
	Incarnation uint64
}

// shadow is a lease whose home is elsewhere, in memory.
type shadow struct {
	incarnation uint64
	keys        keySet
}

// Register notes that a shard may have keys of lease id and returns the lease's
// incarnation. It fails with ErrNotFound when there is no such lease and with
// ErrEnding when its end is decided.
func (t *Table) Register(b *pebble.Batch, id int64, shard uint64) (incarnation uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.leases[id]
	switch {
	case !ok:
		return 0, ErrNotFound
	case e.Ending:
		return 0, ErrEnding
	}
	shards := e.shards()
	at, known := slices.BinarySearch(shards, shard)
	if known {
		return e.Incarnation, nil
	}
	if err := b.Set(t.registrationKey(id, shard), nil, nil); err != nil {
		return 0, fmt.Errorf("write registration of lease %x: %w", id, err)
	}
	// Readers may hold the old list.
	shards = slices.Insert(slices.Clone(shards), at, shard)
	e.others = &shards
	return e.Incarnation, nil
}

// Registered returns the shards that may have keys of lease id, in order, other than
// its home. It must not be changed.
func (t *Table) Registered(id int64) []uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.leases[id]; ok {
		return e.shards()
	}
	return nil
}

func compareRefs(a, b Ref) int { return cmp.Compare(a.ID, b.ID) }

// MakeShadow makes the shadow of a lease, unless it is there. It fails with ErrNotFound when
// the lease has ended here.
func (t *Table) MakeShadow(b *pebble.Batch, r Ref) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.shadows[r.ID]; ok {
		if s.incarnation != r.Incarnation {
			return ErrNotFound
		}
		return nil
	}
	if t.tombstones[r.ID] >= r.Incarnation {
		return ErrNotFound
	}
	if err := b.Set(t.idKey(kindShadow, r.ID), encodeCounter(r.Incarnation), nil); err != nil {
		return fmt.Errorf("write shadow of lease %x: %w", r.ID, err)
	}
	t.shadows[r.ID] = &shadow{incarnation: r.Incarnation}
	t.countLocked()
	return nil
}

// MayMakeShadow reports whether MakeShadow would succeed.
func (t *Table) MayMakeShadow(r Ref) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s, ok := t.shadows[r.ID]; ok {
		return s.incarnation == r.Incarnation
	}
	return t.tombstones[r.ID] < r.Incarnation
}

// Holds reports whether keys hang on lease id here: it is there, ending or not, or has
// a shadow.
func (t *Table) Holds(id int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.keysLocked(id) != nil
}

// RefOf returns the grant of lease id that keys hang on here: that of the lease, ending or not, or of
// its shadow.
func (t *Table) RefOf(id int64) (Ref, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.leases[id]; ok {
		return e.Ref(), true
	}
	if s, ok := t.shadows[id]; ok {
		return Ref{ID: id, Incarnation: s.incarnation}, true
	}
	return Ref{}, false
}

// Drop takes the shadow of a lease away, whose end is decided, and returns its keys in
// ascending order, for the caller to delete. It leaves a tombstone. Repeated, it does
// nothing.
func (t *Table) Drop(b *pebble.Batch, r Ref) ([][]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.countLocked()
	if t.tombstones[r.ID] < r.Incarnation {
		if err := b.Set(t.idKey(kindTombstone, r.ID), encodeCounter(r.Incarnation), nil); err != nil {
			return nil, fmt.Errorf("write tombstone of lease %x: %w", r.ID, err)
		}
		t.tombstones[r.ID] = r.Incarnation
	}
	s, ok := t.shadows[r.ID]
	if !ok || s.incarnation > r.Incarnation {
		return nil, nil
	}
	if err := b.Delete(t.idKey(kindShadow, r.ID), nil); err != nil {
		return nil, fmt.Errorf("delete shadow of lease %x: %w", r.ID, err)
	}
	delete(t.shadows, r.ID)
	return s.keys.sorted(), nil
}

// Tombstones returns up to limit tombstones, by id.
func (t *Table) Tombstones(limit int) []Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	refs := make([]Ref, 0, min(limit, len(t.tombstones)))
	for id, incarnation := range t.tombstones {
		if len(refs) == limit {
			break
		}
		refs = append(refs, Ref{id, incarnation})
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

// DropTombstone takes a tombstone away that nothing can need any more, unless there is a newer
// one.
func (t *Table) DropTombstone(b *pebble.Batch, r Ref) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropTombstoneLocked(b, r)
}

// DropTombstones takes all tombstones away.
func (t *Table) DropTombstones(b *pebble.Batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, incarnation := range t.tombstones {
		if err := t.dropTombstoneLocked(b, Ref{id, incarnation}); err != nil {
			return err
		}
	}
	return nil
}

// dropTombstoneLocked is DropTombstone. t.mu must be held.
func (t *Table) dropTombstoneLocked(b *pebble.Batch, r Ref) error {
	if incarnation, ok := t.tombstones[r.ID]; !ok || incarnation > r.Incarnation {
		return nil
	}
	if err := b.Delete(t.idKey(kindTombstone, r.ID), nil); err != nil {
		return fmt.Errorf("delete tombstone of lease %x: %w", r.ID, err)
	}
	delete(t.tombstones, r.ID)
	t.countLocked()
	return nil
}

// loadShadows adds to the leases what lies beside their records.
func (t *Table) loadShadows(leases map[int64]*entry) (shadows map[int64]*shadow, tombstones map[int64]uint64, err error) {
	shadows, tombstones = make(map[int64]*shadow), make(map[int64]uint64)
	err = t.each(kindShadow, func(id int64, _, value []byte) error {
		incarnation, err := decodeCounter(value)
		shadows[id] = &shadow{incarnation: incarnation}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = t.each(kindTombstone, func(id int64, _, value []byte) error {
		incarnation, err := decodeCounter(value)
		tombstones[id] = incarnation
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = t.each(kindRegistration, func(id int64, rest, value []byte) error {
		e, ok := leases[id]
		if !ok || len(rest) != 8 {
			return errCorrupt
		}
		if len(value) > 0 {
			return keys.ErrNewer
		}
		shards := append(e.shards(), binary.BigEndian.Uint64(rest))
		e.others = &shards
		return nil
	})
	return shadows, tombstones, err
}

// each calls fn for every stored record of a kind, in key order, with what follows the
// id in its key.
func (t *Table) each(kind byte, fn func(id int64, rest, value []byte) error) (err error) {
	it, err := t.db.NewIter(&pebble.IterOptions{
		LowerBound: append(slices.Clone(t.prefix), kind),
		UpperBound: append(slices.Clone(t.prefix), kind+1),
	})
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	defer func() {
		if cerr := it.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("read leases: %w", cerr)
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()[len(t.prefix)+1:]
		id, err := decodeRecordKey(key[:min(8, len(key))])
		if err != nil {
			return fmt.Errorf("decode lease key %x: %w", it.Key(), err)
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read lease %x: %w", id, err)
		}
		if err := fn(id, key[8:], v); err != nil {
			return fmt.Errorf("decode lease %x: %w", id, err)
		}
	}
	return it.Error()
}

// checkKinds returns an error if there are records of a kind that this version does not
// know.
func (t *Table) checkKinds() (err error) {
	it, err := t.db.NewIter(&pebble.IterOptions{LowerBound: t.prefix, UpperBound: keys.PrefixEnd(t.prefix)})
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	return keys.CheckTags(it, t.prefix, kinds)
}

// idKey returns the key of a record of some kind of lease id.
func (t *Table) idKey(kind byte, id int64) []byte {
	return appendID(append(slices.Clone(t.prefix), kind), id)
}

func (t *Table) registrationKey(id int64, shard uint64) []byte {
	return binary.BigEndian.AppendUint64(t.idKey(kindRegistration, id), shard)
}
