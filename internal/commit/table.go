package commit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
)

// Table is the transactions of one replica: those that hold keys of the shard, those that the
// shard has committed as their home and that some other participant has perhaps not finished,
// and what became of those that are over, so that a step of one that comes late does nothing. Its
// records lie in Pebble.
//
// Methods that take a batch belong to the one goroutine that applies commands. They show in
// memory at once, and Finish is the last for a batch. The other methods may run beside them.
type Table struct {
	db     *pebble.DB
	prefix []byte // ends in the table's own byte; immutable

	mu sync.RWMutex
	// All below is protected by mu.

	held      map[ID]Held
	committed map[ID]Committed
	// over hold, by node, the transactions that have ended here, in the order in which the node drew
	// their ids. Invariant: none is below its node's mark.
	over map[uint64][]ended
	// marks hold, by node, an id below which all of the node are over, and risen are the nodes whose mark
	// Finish has to write.
	marks map[uint64]ID
	risen []uint64
	// leases count, by lease, the transactions in held that name it, and ends those that are its
	// end.
	leases, ends map[int64]int
	// ended are those of committed that are ends of leases.
	ended map[lease.Ref]struct{}
}

// Held is a transaction that holds keys of the shard.
type Held struct {
	Age    Age
	Home   uint64
	Leases []int64
	End    End
}

// Committed is a transaction that the shard has committed.
type Committed struct {
	// Rev is the transaction's revision.
	Rev int64
	// Shares are those of the other participants.
	Shares []Share
	// Ended is the lease whose end it is, zero for any other transaction.
	Ended lease.Ref
}

// ended is a transaction that has ended, at revision rev or aborted if that is 0.
type ended struct {
	id  ID
	rev int64
}

// searchEnded returns the place of the first that id was not drawn after, and whether it is that of id.
func searchEnded(list []ended, id ID) (at int, found bool) {
	return slices.BinarySearchFunc(list, id, func(e ended, id ID) int {
		return cmp.Or(cmp.Compare(e.id.Boot, id.Boot), cmp.Compare(e.id.Counter, id.Counter))
	})
}

// tableByte leads every key of a table below the prefix of its replica. Behind it come a kind
// of record, and an id or a node.
const tableByte = 'c'

const (
	kindHeld      byte = 'h'
	kindCommitted byte = 'c'
	kindOver      byte = 'o'
	kindMark      byte = 'm'
)

// Open loads the table of the replica whose keys begin with prefix, which is copied.
func Open(db *pebble.DB, prefix []byte) (*Table, error) {
	t := &Table{db: db, prefix: append(slices.Clone(prefix), tableByte)}
	return t, t.Reload()
}

// Reload replaces what is in memory by what Pebble holds.
func (t *Table) Reload() (err error) {
	held, committed := make(map[ID]Held), make(map[ID]Committed)
	over, marks := make(map[uint64][]ended), make(map[uint64]ID)
	iter, err := t.db.NewIter(&pebble.IterOptions{LowerBound: t.prefix, UpperBound: keys.PrefixEnd(t.prefix)})
	if err != nil {
		return fmt.Errorf("load transactions: %w", err)
	}
	for ok := iter.First(); ok && err == nil; ok = iter.Next() {
		k := iter.Key()[len(t.prefix):]
		var v []byte
		if v, err = iter.ValueAndErr(); err != nil || len(k) == 0 {
			break
		}
		var id ID
		if id, err = FromKey(string(k[1:])); err != nil {
			break
		}
		r := reader{rest: v}
		ends := false
		if k[0] == kindHeld || k[0] == kindCommitted {
			ends = r.eitherForm(endForm)
		} else {
			r.form()
		}
		switch k[0] {
		case kindHeld:
			h := Held{Age: Age{Rev: r.varint(), First: r.id()}, Home: r.uvarint(), Leases: r.leases()}
			if ends {
				h.End = r.leaseEnd()
			}
			held[id] = h
		case kindCommitted:
			c := Committed{Rev: r.varint(), Shares: r.shares()}
			if ends {
				c.Ended = r.ref()
			}
			committed[id] = c
		case kindOver:
			// Their keys sort as the lists do.
			over[id.Node] = append(over[id.Node], ended{id, r.varint()})
		case kindMark:
			marks[id.Node] = r.id()
		default:
			r.err = fmt.Errorf("record of kind %d: %w", k[0], keys.ErrNewer)
		}
		err = r.end()
	}
	if cerr := iter.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("load transactions: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.committed, t.over, t.marks, t.risen = held, committed, over, marks, nil
	t.leases, t.ends = make(map[int64]int), make(map[int64]int)
	for _, h := range held {
		t.countLocked(h, 1)
	}
	t.ended = make(map[lease.Ref]struct{})
	for _, c := range committed {
		t.endedLocked(c)
	}
	return nil
}

// countLocked counts the leases of a transaction in or out. t.mu must be held.
func (t *Table) countLocked(h Held, n int) {
	for _, id := range h.Leases {
		count(t.leases, id, n)
	}
	if !h.End.IsZero() {
		count(t.ends, h.End.Lease.ID, n)
	}
}

// endedLocked takes a transaction that is committed into ended, if it belongs there. t.mu must be held.
func (t *Table) endedLocked(c Committed) {
	if (c.Ended != lease.Ref{}) {
		t.ended[c.Ended] = struct{}{}
	}
}

func count(of map[int64]int, id int64, n int) {
	if of[id] += n; of[id] == 0 {
		delete(of, id)
	}
}

// Refused reports whether no Prepare of id is taken any more.
func (t *Table) Refused(id ID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, over := searchEnded(t.over[id.Node], id)
	return over || id.before(t.marks[id.Node])
}

// Outcome returns the revision of a transaction that has ended here, 0 for one that was aborted,
// and whether it is known to have ended.
func (t *Table) Outcome(id ID) (rev int64, known bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if c, ok := t.committed[id]; ok {
		return c.Rev, true
	}
	list := t.over[id.Node]
	at, known := searchEnded(list, id)
	if known {
		rev = list[at].rev
	}
	return rev, known
}

// Held returns a transaction that holds keys.
func (t *Table) Held(id ID) (Held, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.held[id]
	return h, ok
}

// Committed returns a transaction that the shard has committed and not forgotten.
func (t *Table) Committed(id ID) (Committed, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c, ok := t.committed[id]
	return c, ok
}

// HoldsLease reports whether a transaction that holds keys names a lease, or is its end.
func (t *Table) HoldsLease(id int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.leases[id] > 0 || t.ends[id] > 0
}

// Ends reports whether a transaction that holds keys is the end of a lease.
func (t *Table) Ends(id int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.ends[id] > 0
}

// HasEnded reports whether the shard has committed the end of a lease and not forgotten it.
func (t *Table) HasEnded(r lease.Ref) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.ended[r]
	return ok
}

// HoldersOf returns the transactions that hold keys and that name a lease or are its end.
func (t *Table) HoldersOf(id int64) (holders []ID) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.leases[id] == 0 && t.ends[id] == 0 {
		return nil
	}
	for holder, h := range t.held {
		if h.End.Lease.ID == id && !h.End.IsZero() || slices.Contains(h.Leases, id) {
			holders = append(holders, holder)
		}
	}
	return holders
}

// AllHeld returns the transactions that hold keys.
func (t *Table) AllHeld() map[ID]Held {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.held)
}

// AllCommitted returns the transactions that are committed and not forgotten.
func (t *Table) AllCommitted() map[ID]Committed {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.committed)
}

// Hold notes that a transaction holds keys, and that its node has closed all attempts below
// the open one.
func (t *Table) Hold(b *pebble.Batch, p *Prepare) error {
	h := Held{Age: p.Age, Home: p.Home, Leases: p.Leases, End: p.End}
	v := h.Age.First.append(binary.AppendVarint([]byte{h.End.form()}, h.Age.Rev))
	v = appendEnd(appendLeases(binary.AppendUvarint(v, h.Home), h.Leases), h.End)
	if err := b.Set(t.key(kindHeld, p.ID), v, nil); err != nil {
		return err
	}
	if err := t.Mark(b, p.ID, p.Open); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[p.ID] = h
	t.countLocked(h, 1)
	return nil
}

// Mark notes that no attempt of an id's node below the open one is under way, and forgets what became
// of them.
func (t *Table) Mark(b *pebble.Batch, id ID, counter uint64) error {
	open := ID{id.Node, id.Boot, counter}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.marks[open.Node].before(open) {
		return nil
	}
	t.marks[open.Node] = open
	if !slices.Contains(t.risen, open.Node) {
		t.risen = append(t.risen, open.Node)
	}
	list := t.over[open.Node]
	gone, _ := searchEnded(list, open)
	for _, e := range list[:gone] {
		if err := b.Delete(t.key(kindOver, e.id), nil); err != nil {
			return err
		}
	}
	if gone == len(list) {
		delete(t.over, open.Node)
	} else {
		t.over[open.Node] = slices.Delete(list, 0, gone)
	}
	return nil
}

// Finish writes the marks that have risen into a batch, which ends with that: they rise with most commands.
func (t *Table) Finish(b *pebble.Batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, node := range t.risen {
		if err := b.Set(t.key(kindMark, ID{Node: node}), t.marks[node].append([]byte{messageForm}), nil); err != nil {
			return fmt.Errorf("note mark: %w", err)
		}
	}
	t.risen = t.risen[:0]
	return nil
}

// End notes that a transaction has ended here, at revision rev or aborted if that is 0. It holds
// keys no more, and no step of it does anything. Whatever has ended before stays as it is.
func (t *Table) End(b *pebble.Batch, id ID, rev int64) error {
	refused := t.Refused(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	if h, ok := t.held[id]; ok {
		delete(t.held, id)
		t.countLocked(h, -1)
		if err := b.Delete(t.key(kindHeld, id), nil); err != nil {
			return err
		}
	}
	if refused {
		return nil
	}
	at, _ := searchEnded(t.over[id.Node], id)
	t.over[id.Node] = slices.Insert(t.over[id.Node], at, ended{id, rev})
	return b.Set(t.key(kindOver, id), binary.AppendVarint([]byte{messageForm}, rev), nil)
}

// Commit notes that the shard has committed a transaction, until Forget.
func (t *Table) Commit(b *pebble.Batch, id ID, c Committed) error {
	form := End{Lease: c.Ended}.form()
	v := appendShares(binary.AppendVarint([]byte{form}, c.Rev), c.Shares)
	if form == endForm {
		v = appendRef(v, c.Ended)
	}
	if err := b.Set(t.key(kindCommitted, id), v, nil); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.committed[id] = c
	t.endedLocked(c)
	return nil
}

// Forget removes a transaction that all participants have finished.
func (t *Table) Forget(b *pebble.Batch, id ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.committed[id]
	if !ok {
		return nil
	}
	delete(t.ended, c.Ended)
	delete(t.committed, id)
	return b.Delete(t.key(kindCommitted, id), nil)
}

func (t *Table) key(kind byte, id ID) []byte {
	return id.append(append(slices.Clone(t.prefix), kind))
}
