package placement

import (
	"bytes"
	"sort"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// SystemShard is the id of the system shard, and FirstDataShard that of the
// first data shard.
const (
	SystemShard    = 1
	FirstDataShard = 2
)

// Piece is a run of positions that one shard owns: from Start up to the next
// piece's.
type Piece struct {
	Start []byte `json:"start"`
	Shard uint64 `json:"shard"`
}

// Map is the placement map.
//
// Invariant: unless it is empty, the first piece starts at the empty position
// and starts strictly rise, so that every position has one owner.
type Map []Piece

// Locate returns the pieces that the positions in [start, end) touch. An empty
// end stands for all positions from start.
func (m Map) Locate(start, end []byte) []Piece {
	first := sort.Search(len(m), func(i int) bool { return bytes.Compare(m[i].Start, start) > 0 }) - 1
	if first < 0 {
		return nil
	}
	last := first + 1
	for last < len(m) && (len(end) == 0 || bytes.Compare(m[last].Start, end) < 0) {
		last++
	}
	return m[first:last:last]
}

// Owned returns the positions that a shard owns.
func (m Map) Owned(shard uint64) keys.Set {
	var spans []keys.Span
	for i, p := range m {
		if p.Shard != shard {
			continue
		}
		s := keys.Span{Start: p.Start}
		if i+1 < len(m) {
			s.End = m[i+1].Start
		}
		spans = append(spans, s)
	}
	return keys.NewSet(spans...)
}

// FirstMap divides the users' keys at the splits and the leases into equal parts.
func FirstMap(splits [][]byte) Map {
	if len(splits) == 0 {
		return Map{{Start: []byte{}, Shard: FirstDataShard}}
	}
	var m Map
	for i, part := range keys.LeaseSection(len(splits) + 1) {
		m = append(m, Piece{Start: part.Start, Shard: FirstDataShard + uint64(i)})
	}
	m[0].Start = []byte{}
	m = append(m, Piece{Start: keys.Position(nil), Shard: FirstDataShard})
	for i, split := range splits {
		m = append(m, Piece{Start: keys.Position(split), Shard: FirstDataShard + 1 + uint64(i)})
	}
	return m
}
