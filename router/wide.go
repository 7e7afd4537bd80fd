package router

import (
	"bytes"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
)

// WideError is ErrSeveralShards of a write, with what lies apart.
type WideError struct {
	// from and to are two spans that the write touches, the same one if that alone is wide.
	from, to keys.Span
	// split is a key between them: what is below it lies on another shard.
	split []byte
}

// Error tells of the keys and the split.
func (e *WideError) Error() string { return ErrSeveralShards.Error() + ": " + e.Where() }

// Unwrap says that it is ErrSeveralShards.
func (*WideError) Unwrap() error { return ErrSeveralShards }

// Where names two keys of the write and the split between them.
func (e *WideError) Where() string {
	switch {
	case !bytes.Equal(e.from.Start, e.to.Start):
		return fmt.Sprintf("%s and %s are divided at %s", quoted(e.from.Start), quoted(e.to.Start), quoted(e.split))
	case len(e.from.End) == 0:
		return fmt.Sprintf("the keys from %s on are divided at %s", quoted(e.from.Start), quoted(e.split))
	default:
		return fmt.Sprintf("the keys from %s to %s are divided at %s", quoted(e.from.Start), quoted(e.from.End), quoted(e.split))
	}
}

// maxShown bounds how much of a key an error shows.
const maxShown = 100

// quoted returns a key as errors show it.
func quoted(key []byte) string {
	if len(key) <= maxShown {
		return fmt.Sprintf("%q", key)
	}
	return fmt.Sprintf("%q…", key[:maxShown])
}

// wide returns the error of a write that touches two spans on different shards, or one that
// lies on several.
func (r *Router) wide(a, b keys.Span) error {
	if bytes.Compare(a.Start, b.Start) > 0 {
		a, b = b, a
	}
	at := keys.Positions(keys.Span{Start: a.Start, End: b.End})
	if !bytes.Equal(a.Start, b.Start) {
		at.End = keys.Positions(keys.Point(b.Start)).End
	}
	pieces := r.system.State().Map.Locate(at.Start, at.End)
	if split := firstSplit(pieces); split != nil {
		return &WideError{from: a, to: b, split: split}
	}
	return ErrSeveralShards // the map has changed
}

// firstSplit returns the first key that lies on another shard than those before, nil if
// there is none.
func firstSplit(pieces []placement.Piece) []byte {
	for i, p := range pieces {
		if p.Shard != pieces[0].Shard {
			return keys.AtPosition(pieces[i].Start)
		}
	}
	return nil
}
