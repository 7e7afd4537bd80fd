package mvcc

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// An entry of history has one change, or a run of changes that a command made one
// after the other. Its storage key says the stamp of the first and, for a run, how
// many there are; its value has the key, or each with its length before it.

// maxRun and maxRunBytes bound the changes of an entry and its value, as far as one
// key fits.
const (
	maxRun      = 128
	maxRunBytes = 16 << 10
)

// run is the changes of one command that are not yet in the batch.
type run struct {
	first stamp
	n     uint32
	// list is the keys, each with its length before it.
	list []byte
}

// note adds the change of key at at to the history, of which the last few may not
// be in the batch before flushHistory.
func (w *Writer) note(key []byte, at stamp) error {
	r := &w.run
	if r.n > 0 && (at != r.first.plus(r.n) || r.n == maxRun || len(r.list)+len(key) > maxRunBytes) {
		if err := w.flushHistory(); err != nil {
			return err
		}
	}
	if r.n == 0 {
		r.first = at
	}
	r.n++
	r.list = binary.AppendUvarint(r.list, uint64(len(key)))
	r.list = append(r.list, key...)
	return nil
}

// flushHistory puts the changes that note has held back into the batch.
func (w *Writer) flushHistory() error {
	r := &w.run
	if r.n == 0 {
		return nil
	}
	list, length := r.list, w.layout.historyLen()
	if r.n == 1 {
		_, head := binary.Uvarint(list)
		list = list[head:]
	} else {
		length += runLen
	}
	d := w.batch.SetDeferred(length, len(list))
	k := w.layout.appendHistory(d.Key[:0], r.first)
	if r.n > 1 {
		keys.AppendUint32(k, r.n)
	}
	copy(d.Value, list)
	r.n, r.list = 0, r.list[:0]
	return d.Finish()
}

// history reads changes in their order.
type history struct {
	iter    *pebble.Iterator
	l       layout
	started bool
	// at and key are the current change. The key is valid until the next.
	at  stamp
	key []byte
	// left is how many further changes the current entry has, and list their keys.
	left uint32
	list []byte
	// err is what ended the reading early.
	err error
}

// openHistory returns the changes from from on, up to revision rev. It must be
// closed. from must not lie within an entry.
func openHistory(db *pebble.DB, l layout, from stamp, rev int64) (*history, error) {
	iter, err := db.NewIter(l.historyBounds(from, rev))
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return &history{iter: iter, l: l}, nil
}

// Close ends the reading.
func (h *history) Close() error { return h.iter.Close() }

// next goes to the next change. It returns false at the end and after an error.
func (h *history) next() bool {
	if h.left > 0 {
		h.left--
		h.at = h.at.next()
		return h.cut()
	}
	move := h.iter.Next
	if !h.started {
		h.started, move = true, h.iter.First
	}
	if !move() {
		h.err = h.iter.Error()
		return false
	}
	return h.entry()
}

// entry takes the entry on which the iterator stands.
func (h *history) entry() bool {
	at, n, err := h.l.splitHistory(h.iter.Key())
	if err == nil {
		h.at = at
		h.list, err = h.iter.ValueAndErr()
	}
	switch {
	case err != nil:
		h.err = err
		return false
	case n == 1:
		h.key, h.list = h.list, nil
		return true
	}
	h.left = n - 1
	return h.cut()
}

// cut takes the next key off the list of a run.
func (h *history) cut() bool {
	n, head := binary.Uvarint(h.list)
	if head <= 0 || n > uint64(len(h.list)-head) {
		h.err = fmt.Errorf("read history at %d: %w", h.at.rev, ErrCorrupt)
		return false
	}
	end := head + int(n)
	h.key, h.list = h.list[head:end], h.list[end:]
	return true
}
