package mvcc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// hold is what a transaction that is not settled holds of the keys. It is immutable once
// it is published.
type hold struct {
	// id is the transaction's, for the caller to choose. It is never used again.
	id string
	// bound is the store's revision where the hold came in, or a higher one up to which the caller
	// knows that nothing is missing. Whatever the transaction will insert has a higher one.
	bound int64
	// shared are the keys that nobody else may change, and exclusive those that nobody
	// else may read in a command either, and that the transaction may change.
	shared, exclusive keys.Set
	// from is bound, or what was resolved when the hold became visible if that is higher:
	// whatever had been promised before has a number that the transaction's is above.
	// It is not replicated, and 0 until settle.
	from int64
	// entries are its spans in the store's index.
	entries []*keys.Entry[heldBy]
}

// resolvedOf returns the revision up to which no change to the keys of spans, or without
// spans to any key, will come any more.
func (st *state) resolvedOf(spans ...keys.Span) int64 { return min(st.resolved, st.holds.from(spans)) }

// readable returns the revision up to which a watcher of span may read history.
func (st *state) readable(span keys.Span) int64 {
	if st.holds.exclude(span) {
		return st.resolvedOf(span)
	}
	return st.rev
}

// Holds reports whether there is a hold of a transaction.
func (w *Writer) Holds(id string) bool {
	_, ok := w.s.holds.byID.Get(id)
	return ok
}

// HoldsAny reports whether there is a hold.
func (w *Writer) HoldsAny() bool { return w.s.holds.len() > 0 }

// Meets reports whether a command that reads and writes keys of these spans meets a hold: one
// may neither write what is held, nor read what is held exclusively.
func (w *Writer) Meets(reads, writes []keys.Span) bool {
	return w.s.holds.meet(reads, writes, func(*hold) bool { return true })
}

// Met returns the ids of the holds that a command meets which reads and writes keys of these
// spans, as of the newest published state.
func (s *Store) Met(reads, writes []keys.Span) (ids []string) {
	return s.state.Load().holds.met(reads, writes)
}

// AwaitSettled waits until ready, which is asked again whenever holds have gone from the
// published state and by AskAgain, returns true.
func (s *Store) AwaitSettled(ctx context.Context, ready func() bool) error {
	for {
		settled := s.hub.nextSettled()
		if ready() {
			return nil
		}
		s.awaiting.Add(1)
		select {
		case <-settled:
			s.awaiting.Add(-1)
		case <-ctx.Done():
			s.awaiting.Add(-1)
			return context.Cause(ctx)
		}
	}
}

// Awaited reports whether somebody waits for holds to go: in AwaitSettled, or to watch what is held.
func (s *Store) Awaited() bool {
	if s.awaiting.Load() > 0 {
		return true
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return len(s.hub.parked) > 0
}

// AskAgain has those who wait in AwaitSettled ask whether they are ready.
func (s *Store) AskAgain() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.settledLocked()
}

// Hold lets a transaction hold keys, until Insert or Release. The caller has found that they
// meet no other hold, and never uses the id again. The hold's bound is above, or the store's revision
// if that is higher: whatever is inserted must have a higher one.
func (w *Writer) Hold(id string, above int64, shared, exclusive keys.Set) error {
	h := &hold{id: id, bound: max(above, w.rev), shared: shared, exclusive: exclusive}
	if err := w.batch.Set(w.layout.hold(id), h.encode(), nil); err != nil {
		return fmt.Errorf("write hold: %w", err)
	}
	w.s.holds.add(h)
	w.held = append(w.held, exclusive)
	w.reheld, w.changed = true, true
	return nil
}

// Release ends the hold of a transaction, if there is one.
func (w *Writer) Release(id string) error {
	h, ok := w.s.holds.byID.Get(id)
	if !ok {
		return nil
	}
	if err := w.batch.Delete(w.layout.hold(id), nil); err != nil {
		return fmt.Errorf("delete hold: %w", err)
	}
	w.s.holds.remove(h)
	w.reheld, w.changed = true, true
	return nil
}

// holdForm opens the record of a hold. What a later form has stops this version.
const holdForm = 1

func (h *hold) encode() []byte {
	b := binary.AppendVarint([]byte{holdForm}, h.bound)
	return keys.AppendSet(keys.AppendSet(b, h.shared), h.exclusive)
}

func decodeHold(id string, b []byte) (*hold, error) {
	if len(b) == 0 {
		return nil, ErrCorrupt
	}
	if b[0] != holdForm {
		return nil, fmt.Errorf("hold of form %d: %w", b[0], keys.ErrNewer)
	}
	h := &hold{id: id}
	var n int
	if h.bound, n = binary.Varint(b[1:]); n <= 0 {
		return nil, ErrCorrupt
	}
	var err1, err2 error
	b = b[1+n:]
	if h.shared, b, err1 = keys.CutSet(b); err1 == nil {
		h.exclusive, b, err2 = keys.CutSet(b)
	}
	if err1 != nil || err2 != nil || len(b) > 0 {
		return nil, ErrCorrupt
	}
	return h, nil
}

// loadHolds reads the holds of st from Pebble.
func (s *Store) loadHolds(st *state) (err error) {
	bounds := s.layout.holdBounds()
	iter, err := s.db.NewIter(bounds)
	if err != nil {
		return fmt.Errorf("load holds: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	for ok := iter.First(); ok; ok = iter.Next() {
		id := string(bytes.TrimPrefix(iter.Key(), bounds.LowerBound))
		v, err := iter.ValueAndErr()
		if err != nil {
			return fmt.Errorf("load hold %x: %w", id, err)
		}
		h, err := decodeHold(id, v)
		if err != nil {
			return fmt.Errorf("load hold %x: %w", id, err)
		}
		st.holds.add(h)
	}
	return iter.Error()
}
