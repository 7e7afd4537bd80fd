package mvcc

import (
	"bytes"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// castagnoli is the polynomial of all hashes.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// HashKV hashes the versions that a compaction at revision rev, or at the newest for 0, must
// retain: of each key its state at rev, and all changes of rev. Up to a negative revision
// there are none. Stores with equal content up to rev agree on it, however far they have been
// compacted up to rev, and swept. It returns the revision it hashed at and the compaction
// revision. It returns ErrCompacted, ErrFutureRev, ErrHeld, ErrReplaced or a fault of storage.
func (v *View) HashKV(rev int64) (sum uint32, compactRev, hashRev int64, err error) {
	return v.hashUpTo(rev, func(rev int64) int64 { return rev })
}

// HashRetained hashes the versions up to revision rev, or up to the newest for 0, that a
// store compacted where this one is must retain: the history between that compaction and rev
// as well. It returns what HashKV does.
func (v *View) HashRetained(rev int64) (sum uint32, compactRev, hashRev int64, err error) {
	return v.hashUpTo(rev, func(int64) int64 { return v.floor })
}

// hashUpTo hashes the versions up to rev that a compaction at the floor of that must retain.
func (v *View) hashUpTo(rev int64, floor func(rev int64) int64) (sum uint32, compactRev, hashRev int64, err error) {
	switch {
	case rev > v.rev:
		return 0, 0, 0, ErrFutureRev
	case rev > 0 && rev < v.floor:
		return 0, 0, 0, ErrCompacted
	case rev == 0:
		rev = v.rev
	}
	if rev > v.HeldFrom() {
		return 0, 0, 0, ErrHeld
	}
	h := crc32.New(castagnoli)
	if err := v.settle(v.hashVersions(h, rev, floor(rev))); err != nil {
		return 0, 0, 0, fmt.Errorf("hash versions: %w", err)
	}
	return h.Sum32(), v.floor, rev, nil
}

// Hash hashes the whole state: the retained versions, the revision and the
// compaction revision.
func (v *View) Hash() (uint32, error) {
	h := crc32.New(castagnoli)
	if err := v.settle(v.hashVersions(h, v.rev, v.floor)); err != nil {
		return 0, fmt.Errorf("hash versions: %w", err)
	}
	write(h, keys.AppendInt64(keys.AppendInt64(nil, v.rev), v.compact))
	return h.Sum32(), nil
}

// write feeds b to h, which never fails.
func write(h hash.Hash32, b []byte) { _, _ = h.Write(b) }

// hashVersions feeds the versions up to rev that a compaction at floor must retain to h, in
// key order and newest first.
func (v *View) hashVersions(h hash.Hash32, rev, floor int64) (err error) {
	l := v.layout
	iter, err := v.db.NewIter(l.versionBounds())
	if err != nil {
		return err
	}
	defer func() { err = closeAfter(iter, err) }()
	var key, head []byte
	base := false // whether the current key's state at the compaction is known
	for ok := iter.First(); ok; ok = iter.Next() {
		k := iter.Key()
		var newHead []byte
		var at stamp
		if key, newHead, at, err = l.splitVersion(key[:0], k); err != nil {
			return err
		}
		if !bytes.Equal(head, newHead) {
			head, base = append(head[:0], newHead...), false
		}
		// What is superseded at or below the compaction revision may have been
		// swept, and so may a tombstone below it.
		if at.rev > rev || base && at.rev < floor {
			continue
		}
		base = base || at.rev <= floor
		b, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		rec, err := decodeRecord(b)
		if err != nil {
			return err
		}
		if rec.dead && at.rev < floor {
			continue
		}
		write(h, k[len(l.prefix):])
		write(h, b)
	}
	return iter.Error()
}
