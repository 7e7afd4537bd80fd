package lease

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// The results of a command on the table that changed nothing.
var (
	// ErrExists is returned when a lease is granted under an id that is taken.
	ErrExists = errors.New("lease: already exists")
	// ErrNotFound is returned when a command names a lease that is not there.
	ErrNotFound = errors.New("lease: not found")
)

// Table is the leases of one replica. Its records lie in Pebble; which keys hang
// on a lease is kept in memory alone, since every key's version says it too, and
// is rebuilt from there.
//
// Grant, Revoke, SetAging, SetFresh, SetEnding, Attach and Detach belong to the
// one goroutine that applies commands. They write into the batch that they are
// given, which the caller commits, and show in memory at once. The other methods
// may run beside them.
type Table struct {
	db     *pebble.DB
	prefix []byte // ends in the table's own byte; immutable

	mu sync.RWMutex
	// leases and granted are protected by mu.
	leases map[int64]*entry
	// shadows and tombstones are those of leases whose home is elsewhere; protected by mu.
	// A tomb is the highest incarnation that has ended.
	shadows    map[int64]*shadow
	tombstones map[int64]uint64
	// granted counts the grants that there ever were.
	//
	// Invariant: granted >= Incarnation of every lease.
	granted uint64
	// size is what Size returns.
	//
	// Invariant: while mu is free it is Bytes for each lease, shadow and tomb.
	size atomic.Int64
}

// Bytes is what a lease counts for beside its keys. It takes about as much: its record on the
// disk, and its entries in the memory of the table and of the leader's clock.
const Bytes = 256

// entry is a lease in memory.
type entry struct {
	Record
	keys keySet
	// others are the shards that may have keys of the lease beside its home, in order; nil for
	// none, as of most leases. What it points to is replaced, never changed.
	others *[]uint64
}

// shards returns the shards that may have keys of the lease beside its home.
func (e *entry) shards() []uint64 {
	if e.others == nil {
		return nil
	}
	return *e.others
}

// tableByte leads every key of a table below the prefix of its replica.
const tableByte = 'l'

// Open loads the table of the replica whose keys begin with prefix, which is
// copied. No lease has keys yet: the caller attaches them from the versioned
// keys. It fails when a record can't be read or decoded.
func Open(db *pebble.DB, prefix []byte) (*Table, error) {
	t := &Table{db: db, prefix: append(slices.Clone(prefix), tableByte)}
	if err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// Reload replaces the state in memory by what Pebble holds, as Open does. It is
// for a replica whose keys were replaced by a snapshot.
func (t *Table) Reload() error {
	if err := t.checkKinds(); err != nil {
		return err
	}
	granted, err := t.loadCounter()
	if err != nil {
		return err
	}
	leases, err := t.loadRecords()
	if err != nil {
		return err
	}
	for id, e := range leases {
		if e.Incarnation > granted {
			return fmt.Errorf("load lease %x: incarnation %d above the grant counter %d", id, e.Incarnation, granted)
		}
	}
	shadows, tombstones, err := t.loadShadows(leases)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leases, t.granted = leases, granted
	t.shadows, t.tombstones = shadows, tombstones
	t.countLocked()
	return nil
}

// countLocked takes note of how many records there are. t.mu must be held.
func (t *Table) countLocked() {
	t.size.Store(Bytes * int64(len(t.leases)+len(t.shadows)+len(t.tombstones)))
}

// Size returns what the table counts for, in bytes. A lease counts once at its home, and once
// on each other shard that has, or had, keys of it. It takes no lock.
func (t *Table) Size() int64 { return t.size.Load() }

func (t *Table) loadCounter() (uint64, error) {
	v, closer, err := t.db.Get(t.counterKey())
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read grant counter: %w", err)
	}
	defer func() { _ = closer.Close() }()
	n, err := decodeCounter(v)
	if err != nil {
		return 0, fmt.Errorf("decode grant counter: %w", err)
	}
	return n, nil
}

func (t *Table) loadRecords() (map[int64]*entry, error) {
	leases := make(map[int64]*entry)
	err := t.each(kindRecord, func(id int64, rest, value []byte) error {
		if len(rest) != 0 {
			return errCorrupt
		}
		r, err := decodeRecord(id, value)
		leases[id] = &entry{Record: r}
		return err
	})
	return leases, err
}

// Grant adds a lease with a time to live of ttl seconds. It fails with ErrExists
// when the id is taken, with ErrEnding when the lease of that id is on its way out.
func (t *Table) Grant(b *pebble.Batch, id, ttl int64) (Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.leases[id]; ok {
		if e.Ending {
			return Record{}, ErrEnding
		}
		return Record{}, ErrExists
	}
	r := Record{ID: id, TTL: ttl, Incarnation: t.granted + 1}
	if err := b.Set(t.counterKey(), encodeCounter(r.Incarnation), nil); err != nil {
		return Record{}, fmt.Errorf("write grant counter: %w", err)
	}
	if err := t.write(b, r); err != nil {
		return Record{}, err
	}
	t.granted = r.Incarnation
	t.leases[id] = &entry{Record: r}
	t.countLocked()
	return r, nil
}

// Revoke removes a lease and returns its keys in ascending order, for the caller
// to delete. The keys are the caller's. It fails with ErrNotFound when there is
// no such lease.
func (t *Table) Revoke(b *pebble.Batch, id int64) ([][]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.leases[id]
	if !ok {
		return nil, ErrNotFound
	}
	if err := b.Delete(t.recordKey(id), nil); err != nil {
		return nil, fmt.Errorf("delete lease %x: %w", id, err)
	}
	for _, shard := range e.shards() {
		if err := b.Delete(t.registrationKey(id, shard), nil); err != nil {
			return nil, fmt.Errorf("delete registration of lease %x: %w", id, err)
		}
	}
	delete(t.leases, id)
	t.countLocked()
	return e.keys.sorted(), nil
}

// SetAging logs what remained of a lease that has been silent. The remainder
// must be positive. It fails with ErrNotFound when there is no such lease.
func (t *Table) SetAging(b *pebble.Batch, id int64, remaining time.Duration) error {
	if remaining <= 0 {
		invariant.Violated("aging remainder %v of lease %x is not positive", remaining, id)
	}
	return t.change(b, id, func(r *Record) { r.Aging = remaining })
}

// SetFresh takes back what SetAging logged. It fails with ErrNotFound when there
// is no such lease.
func (t *Table) SetFresh(b *pebble.Batch, id int64) error {
	return t.change(b, id, func(r *Record) { r.Aging = 0 })
}

// SetEnding marks a lease whose end is decided, and whether its keys are still to be deleted,
// all together; Exists denies it from then on. It fails with ErrNotFound when there is no such
// lease.
func (t *Table) SetEnding(b *pebble.Batch, id int64, intact bool) error {
	return t.change(b, id, func(r *Record) { r.Ending, r.Intact = true, intact })
}

func (t *Table) change(b *pebble.Batch, id int64, f func(*Record)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.leases[id]
	if !ok {
		return ErrNotFound
	}
	r := e.Record
	f(&r)
	if r == e.Record {
		return nil
	}
	if err := t.write(b, r); err != nil {
		return err
	}
	e.Record = r
	return nil
}

// Attach hangs key, which is kept and must not be changed, on a lease that must be there, or on
// its shadow. A key that already hangs on it stays.
func (t *Table) Attach(id int64, key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := t.keysLocked(id)
	if keys == nil {
		invariant.Violated("key %q attached to lease %x, which is not there", key, id)
	}
	if len(key) == 0 {
		invariant.Violated("empty key attached to lease %x", id)
	}
	keys.add(key)
}

// Detach takes key off a lease. It does nothing when the lease or the key is not
// there, as after Revoke.
func (t *Table) Detach(id int64, key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if keys := t.keysLocked(id); keys != nil {
		keys.remove(key)
	}
}

// keysLocked returns the keys of a lease or of its shadow, nil if there is neither.
// t.mu must be held.
func (t *Table) keysLocked(id int64) *keySet {
	if e, ok := t.leases[id]; ok {
		return &e.keys
	}
	if s, ok := t.shadows[id]; ok {
		return &s.keys
	}
	return nil
}

// Exists reports whether keys may be attached to lease id: it is there and not
// ending, or has a shadow.
func (t *Table) Exists(id int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.leases[id]; ok {
		return !e.Ending
	}
	_, ok := t.shadows[id]
	return ok
}

// Get returns the record of lease id.
func (t *Table) Get(id int64) (Record, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, ok := t.leases[id]
	if !ok {
		return Record{}, false
	}
	return e.Record, true
}

// OfGrant returns the record of one grant of a lease.
func (t *Table) OfGrant(r Ref) (Record, bool) {
	rec, ok := t.Get(r.ID)
	return rec, ok && rec.Incarnation == r.Incarnation
}

// All returns the records of all leases by ascending id. The slice is the
// caller's.
func (t *Table) All() []Record {
	t.mu.RLock()
	all := make([]Record, 0, len(t.leases))
	for _, e := range t.leases {
		all = append(all, e.Record)
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Keys returns the keys of lease id in ascending order, nil when there are none.
// They are the caller's.
func (t *Table) Keys(id int64) [][]byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if keys := t.keysLocked(id); keys != nil {
		return keys.sorted()
	}
	return nil
}

// KeysOf returns the keys that hang here on one grant of a lease, in ascending order, nil when
// there are none. They are the caller's.
func (t *Table) KeysOf(r Ref) [][]byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.leases[r.ID]; ok && e.Incarnation == r.Incarnation {
		return e.keys.sorted()
	}
	if s, ok := t.shadows[r.ID]; ok && s.incarnation == r.Incarnation {
		return s.keys.sorted()
	}
	return nil
}

// Every reports whether ok holds for every key of lease id, as it does where there
// are none. It asks in no order, and until the first that is not. ok must not call
// the table, nor keep or change a key.
func (t *Table) Every(id int64, ok func(key []byte) bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	keys := t.keysLocked(id)
	return keys == nil || keys.every(ok)
}

// Len returns the number of leases.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.leases)
}

// Granted returns the number of grants that the table ever made.
func (t *Table) Granted() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.granted
}

func (t *Table) write(b *pebble.Batch, r Record) error {
	if err := b.Set(t.recordKey(r.ID), appendRecord(make([]byte, 0, maxRecord), r), nil); err != nil {
		return fmt.Errorf("write lease %x: %w", r.ID, err)
	}
	return nil
}

func (t *Table) recordKey(id int64) []byte {
	return appendRecordKey(make([]byte, 0, len(t.prefix)+9), t.prefix, id)
}

func (t *Table) counterKey() []byte {
	return append(slices.Clone(t.prefix), kindCounter)
}
