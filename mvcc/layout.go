package mvcc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// The sub-prefixes below the store's own prefix. Others belong to others.
const (
	spaceVersions = 'k'
	spaceHistory  = 'h'
	spaceMeta     = 'm'
	spaceHolds    = 't'
)

// stampLen is the length of a revision and a sub in a storage key, and runLen that
// of the number of changes behind them.
const (
	stampLen = 8 + 4
	runLen   = 4
)

// maxSub is the highest sub a version can have.
const maxSub = 1<<32 - 1

// layout composes and splits the store's keys in Pebble. It is immutable.
type layout struct {
	// prefix is what all keys of the store begin with.
	prefix []byte
}

// start returns the lowest key of a space.
func (l layout) start(space byte) []byte { return append(slices.Clip(l.prefix), space) }

// versionBounds returns the bounds of all versions.
func (l layout) versionBounds() *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: l.start(spaceVersions), UpperBound: l.start(spaceVersions + 1)}
}

// historyBounds returns the bounds of the changes from from on, up to revision
// rev.
func (l layout) historyBounds(from stamp, rev int64) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: l.appendHistory(nil, from), UpperBound: l.appendHistory(nil, stamp{rev: rev + 1})}
}

// holdBounds returns the bounds of all holds.
func (l layout) holdBounds() *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: l.start(spaceHolds), UpperBound: l.start(spaceHolds + 1)}
}

func (l layout) hold(id string) []byte { return append(l.start(spaceHolds), id...) }

func (l layout) meta(name string) []byte { return append(l.start(spaceMeta), name...) }

// versionLen is the length of the storage key of one version of key.
func (l layout) versionLen(key []byte) int {
	return len(l.prefix) + 1 + keys.EscapedLen(key) + stampLen
}

// appendVersions appends what the storage keys of all versions of key share.
func (l layout) appendVersions(dst, key []byte) []byte {
	dst = append(dst, l.prefix...)
	dst = append(dst, spaceVersions)
	return keys.AppendEscaped(dst, key)
}

// appendVersion appends the storage key of one version. Versions of one key
// sort newest first.
func (l layout) appendVersion(dst, key []byte, rev int64, sub uint32) []byte {
	dst = l.appendVersions(dst, key)
	dst = keys.AppendInt64Desc(dst, rev)
	return keys.AppendUint32Desc(dst, sub)
}

// splitVersion splits a storage key of the version space. It appends the key to
// dst; head is the part of k that all versions of that key share.
func (l layout) splitVersion(dst, k []byte) (key, head []byte, at stamp, err error) {
	body := k[len(l.prefix)+1:]
	key, rest, err := keys.Unescape(dst, body)
	if err != nil || len(rest) != stampLen {
		return nil, nil, stamp{}, fmt.Errorf("split version key %x: %w", k, ErrCorrupt)
	}
	return key, k[:len(k)-stampLen], stampDesc(rest), nil
}

// stampDesc reads the stamp of a version key; b has stampLen bytes.
func stampDesc(b []byte) stamp {
	rev, b, err1 := keys.CutInt64Desc(b)
	sub, _, err2 := keys.CutUint32Desc(b)
	if err1 != nil || err2 != nil {
		return stamp{}
	}
	return stamp{rev, sub}
}

func (l layout) historyLen() int { return len(l.prefix) + 1 + stampLen }

func (l layout) appendHistory(dst []byte, at stamp) []byte {
	dst = append(dst, l.prefix...)
	dst = append(dst, spaceHistory)
	dst = keys.AppendInt64(dst, at.rev)
	return keys.AppendUint32(dst, at.sub)
}

// splitHistory reads the stamp of the first change and the number of changes from a
// storage key of the history space.
func (l layout) splitHistory(k []byte) (first stamp, n uint32, err error) {
	rev, rest, err1 := keys.CutInt64(k[len(l.prefix)+1:])
	sub, rest, err2 := keys.CutUint32(rest)
	n = 1
	var err3 error
	if len(rest) > 0 {
		n, rest, err3 = keys.CutUint32(rest)
	}
	if err1 != nil || err2 != nil || err3 != nil || len(rest) != 0 || n == 0 {
		return stamp{}, 0, fmt.Errorf("split history key %x: %w", k, ErrCorrupt)
	}
	return stamp{rev, sub}, n, nil
}

// stamp is the place of one version in the order of all changes.
type stamp struct {
	rev int64
	sub uint32
}

// next returns the lowest stamp above a.
func (a stamp) next() stamp {
	if a.sub == maxSub {
		return stamp{rev: a.rev + 1}
	}
	return stamp{a.rev, a.sub + 1}
}

// plus returns the stamp n changes behind a in the same revision.
func (a stamp) plus(n uint32) stamp { return stamp{a.rev, a.sub + n} }

// Kinds of records.
const (
	kindPut       = 1
	kindTombstone = 2
)

// record is what is stored for one version, beside what its key says.
type record struct {
	dead                   bool
	create, version, lease int64
	// value may alias the buffer that the record was decoded from.
	value []byte
}

func recordLen(it *item) int {
	if it.dead {
		return 1
	}
	return 1 + uvarintLen(uint64(it.create)) + uvarintLen(uint64(it.version)) + varintLen(it.lease) + int(it.size)
}

// appendRecord appends the record of version it, whose value is value.
func appendRecord(dst []byte, it *item, value []byte) []byte {
	if it.dead {
		return append(dst, kindTombstone)
	}
	dst = append(dst, kindPut)
	dst = binary.AppendUvarint(dst, uint64(it.create))
	dst = binary.AppendUvarint(dst, uint64(it.version))
	dst = binary.AppendVarint(dst, it.lease)
	return append(dst, value...)
}

func decodeRecord(b []byte) (record, error) {
	switch {
	case len(b) == 1 && b[0] == kindTombstone:
		return record{dead: true}, nil
	case len(b) == 0 || b[0] == kindTombstone:
		return record{}, fmt.Errorf("decode record of %d bytes: %w", len(b), ErrCorrupt)
	case b[0] != kindPut:
		return record{}, fmt.Errorf("decode record of kind %d: %w", b[0], keys.ErrNewer)
	}
	b = b[1:]
	create, n1 := binary.Uvarint(b)
	if n1 <= 0 {
		return record{}, fmt.Errorf("decode create revision: %w", ErrCorrupt)
	}
	version, n2 := binary.Uvarint(b[n1:])
	if n2 <= 0 {
		return record{}, fmt.Errorf("decode version: %w", ErrCorrupt)
	}
	lease, n3 := binary.Varint(b[n1+n2:])
	if n3 <= 0 {
		return record{}, fmt.Errorf("decode lease: %w", ErrCorrupt)
	}
	return record{create: int64(create), version: int64(version), lease: lease, value: b[n1+n2+n3:]}, nil
}

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func varintLen(v int64) int { return uvarintLen(uint64(v)<<1 ^ uint64(v>>63)) }

// The names of the meta records. Sweep writes the second, applying the others, so
// that neither ever overwrites what the other has counted.
const (
	metaApplied = "applied"
	metaSwept   = "swept"
	metaBase    = "base"
)

// applied is what applying commands has brought about.
type applied struct {
	// rev is the newest revision: that of the newest change, or one up to which
	// it was said that none would come.
	rev int64
	// compact is the compaction revision, -1 before the first.
	// Invariant: compact <= rev.
	compact int64
	// added is the logical size in bytes of all versions ever written.
	added int64
}

// swept is what Sweep has brought about.
type swept struct {
	// rev is the compaction revision up to which Sweep is done.
	// Invariant: rev <= applied.compact.
	rev int64
	// removed is the logical size in bytes of all versions removed.
	// Invariant: removed <= applied.added.
	removed int64
}

func (a applied) encode() []byte {
	b := keys.AppendInt64(nil, a.rev)
	b = keys.AppendInt64(b, a.compact)
	return keys.AppendInt64(b, a.added)
}

func (s swept) encode() []byte {
	return keys.AppendInt64(keys.AppendInt64(nil, s.rev), s.removed)
}

// readMeta reads the integers of a meta record into dst, which stay as they are
// if there is no such record.
func readMeta(db *pebble.DB, key []byte, dst ...*int64) (err error) {
	b, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read meta %q: %w", key, err)
	}
	defer func() { err = closeAfter(closer, err) }()
	for _, d := range dst {
		if *d, b, err = keys.CutInt64(b); err != nil {
			return fmt.Errorf("decode meta %q: %w", key, ErrCorrupt)
		}
	}
	if len(b) != 0 {
		return fmt.Errorf("decode meta %q: %d bytes too many: %w", key, len(b), ErrCorrupt)
	}
	return nil
}
