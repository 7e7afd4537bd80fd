package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// Shape says what a data shard owns and how its revisions are counted.
type Shape struct {
	// Ordered says that revisions are the oracle's numbers. Without it the shard is
	// alone and counts by itself. It never goes back.
	Ordered bool
	// Owned are the positions of the keys and leases that the shard owns; none until
	// it has its first shape.
	Owned keys.Set
}

// HasShape reports whether the shard has got its first shape.
func (s *Shape) HasShape() bool { return len(s.Owned) > 0 }

const (
	// shapeTag is the key of a data shard's shape below its replica's prefix.
	shapeTag byte = 'b'
	// shapeForm opens a shape. What a later form has stops this version.
	shapeForm byte = 1
)

func shapeKey(prefix []byte) []byte {
	return append(append([]byte(nil), prefix...), shapeTag)
}

var errBadShape = errors.New("malformed shape")

// appendShape writes a shape, as it is in the record and in the command.
func appendShape(dst []byte, s Shape) []byte {
	ordered := byte(0)
	if s.Ordered {
		ordered = 1
	}
	return keys.AppendSet(append(dst, shapeForm, ordered), s.Owned)
}

func decodeShape(v []byte) (Shape, error) {
	if len(v) > 0 && v[0] != shapeForm {
		return Shape{}, fmt.Errorf("shape of form %d: %w", v[0], keys.ErrNewer)
	}
	if len(v) < 2 || v[1] > 1 {
		return Shape{}, errBadShape
	}
	owned, rest, err := keys.CutSet(v[2:])
	if err != nil || len(rest) != 0 {
		return Shape{}, errBadShape
	}
	return Shape{Ordered: v[1] == 1, Owned: owned}, nil
}

// readShape returns the zero shape for a shard without one.
func readShape(r pebble.Reader, prefix []byte) (s Shape, err error) {
	v, closer, err := r.Get(shapeKey(prefix))
	if errors.Is(err, pebble.ErrNotFound) {
		return Shape{}, nil
	}
	if err != nil {
		return Shape{}, fmt.Errorf("read shape: %w", err)
	}
	s, err = decodeShape(v)
	return s, errors.Join(err, closer.Close())
}

// Shape returns the shape that this replica has applied. It must not be changed.
func (d *Data) Shape() *Shape { return d.shape.Load() }

// GiveShape gives the shard its first shape, unless it has one. Errors are those of
// Replica.Propose.
func (d *Data) GiveShape(ctx context.Context, s Shape) error {
	_, err := d.replica.Propose(ctx, raft.Kind(kindFirstShape), appendShape(nil, s))
	return err
}

// Past is what a shard has behind it when it becomes an ordered one.
type Past struct {
	// Rev is its revision and Compacted its compaction revision, -1 before the
	// first.
	Rev, Compacted int64
}

// Order makes the shard an ordered one and returns what came before. Repeated, it
// returns the same or more. Errors are those of Replica.Propose.
func (d *Data) Order(ctx context.Context) (Past, error) {
	result, err := d.replica.Propose(ctx, raft.Kind(kindOrder), nil)
	past, _ := result.(Past)
	return past, err
}
