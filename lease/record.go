package lease

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Record is the replicated state of a lease, without its keys.
type Record struct {
	// ID is the lease's id, chosen by the client or for it.
	ID int64
	// TTL is the granted time to live in seconds.
	TTL int64
	// Incarnation is the number of this grant among all grants of the table. It
	// tells a lease from an earlier one with the same id.
	Incarnation uint64
	// Aging is the remainder that a leader logged for a lease that had been
	// silent, 0 for a fresh lease. A new leader starts from it instead of TTL.
	//
	// Invariant: 0 <= Aging.
	Aging time.Duration
	// Ending says that the end of the lease is decided and under way. It is
	// final.
	Ending bool
	// Intact says of an ending lease that none of its keys is deleted yet: one transaction
	// over all shards that have some will delete them together, and take Intact away.
	Intact bool
}

// Ref names the grant.
func (r Record) Ref() Ref { return Ref{ID: r.ID, Incarnation: r.Incarnation} }

const (
	recordVersion = 1
	flagEnding    = 1 << 0
	flagIntact    = 1 << 1

	// maxRecord is the longest encoding: version, flags and three varints.
	maxRecord = 2 + 3*binary.MaxVarintLen64
)

var errCorrupt = errors.New("corrupt record")

// appendRecord appends the stored form of r to dst. The id is not part of it: it
// is the key.
//
//	version(1) flags(1) varint(TTL) uvarint(Incarnation) uvarint(Aging in ns)
func appendRecord(dst []byte, r Record) []byte {
	var flags byte
	if r.Ending {
		flags |= flagEnding
	}
	if r.Intact {
		flags |= flagIntact
	}
	dst = append(dst, recordVersion, flags)
	dst = binary.AppendVarint(dst, r.TTL)
	dst = binary.AppendUvarint(dst, r.Incarnation)
	return binary.AppendUvarint(dst, uint64(r.Aging))
}

// decodeRecord reads what appendRecord wrote for lease id.
func decodeRecord(id int64, b []byte) (Record, error) {
	if len(b) < 2 {
		return Record{}, errCorrupt
	}
	if b[0] != recordVersion {
		return Record{}, fmt.Errorf("record version %d: %w", b[0], keys.ErrNewer)
	}
	if b[1]&^(flagEnding|flagIntact) != 0 {
		return Record{}, fmt.Errorf("record flags %x: %w", b[1], keys.ErrNewer)
	}
	r := Record{ID: id, Ending: b[1]&flagEnding != 0, Intact: b[1]&flagIntact != 0}
	if r.Intact && !r.Ending {
		return Record{}, errCorrupt
	}
	b = b[2:]
	ttl, n := binary.Varint(b)
	if n <= 0 {
		return Record{}, errCorrupt
	}
	r.TTL, b = ttl, b[n:]
	if r.Incarnation, n = binary.Uvarint(b); n <= 0 {
		return Record{}, errCorrupt
	}
	b = b[n:]
	aging, n := binary.Uvarint(b)
	if n <= 0 || n != len(b) || aging > math.MaxInt64 {
		return Record{}, errCorrupt
	}
	r.Aging = time.Duration(aging)
	return r, nil
}

// Key layout below the table's prefix. Record keys order as the ids do.
const (
	kindCounter = 'c'
	kindRecord  = 'r'
	// kindRegistration keys go on with a shard, eight bytes, big-endian.
	kindRegistration = 'g'
	kindShadow       = 'h'
	kindTombstone    = 't'

	// kinds are all of them.
	kinds = "cghrt"

	counterVersion = 1
)

// appendRecordKey appends the key of lease id, below prefix, to dst.
func appendRecordKey(dst, prefix []byte, id int64) []byte {
	dst = append(dst, prefix...)
	return appendID(append(dst, kindRecord), id)
}

// appendID appends id so that keys order as ids do.
func appendID(dst []byte, id int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(id)^(1<<63))
}

// decodeRecordKey returns the id in a record's key, less the table's prefix and
// the kind.
func decodeRecordKey(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, errCorrupt
	}
	return int64(binary.BigEndian.Uint64(b) ^ (1 << 63)), nil
}

// encodeCounter returns the stored form of a count of grants.
func encodeCounter(n uint64) []byte {
	return binary.AppendUvarint([]byte{counterVersion}, n)
}

// decodeCounter reads what encodeCounter wrote.
func decodeCounter(b []byte) (uint64, error) {
	if len(b) < 2 {
		return 0, errCorrupt
	}
	if b[0] != counterVersion {
		return 0, fmt.Errorf("version %d: %w", b[0], keys.ErrNewer)
	}
	c, n := binary.Uvarint(b[1:])
	if n <= 0 || n != len(b)-1 {
		return 0, errCorrupt
	}
	return c, nil
}
