package remote

import (
	"encoding/binary"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
)

func appendBool(dst []byte, v bool) []byte {
	if v {
		return binary.AppendUvarint(dst, 1)
	}
	return binary.AppendUvarint(dst, 0)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func appendSpans(dst []byte, spans []keys.Span) []byte {
	// All keys are told from none by a count of 0.
	if spans == nil {
		return binary.AppendUvarint(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(spans))+1)
	for _, s := range spans {
		dst = appendBytes(appendBytes(dst, s.Start), s.End)
	}
	return dst
}

// reader takes a message apart. What follows a malformed part reads as zero, and done
// says so.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	return cut(r, v, n)
}

func (r *reader) bool() bool { return r.uvarint() == 1 }

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	return cut(r, v, n)
}

func cut[N int64 | uint64](r *reader, v N, n int) N {
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// bytes returns the next bytes, which alias the message.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// count returns how many things follow, each at least so many bytes long.
func (r *reader) count(least int) int {
	return r.atMost(r.uvarint(), least)
}

// atMost returns n, unless the rest can't hold so many things of at least so many bytes each.
func (r *reader) atMost(n uint64, least int) int {
	if n > uint64(len(r.rest)/least) {
		r.bad, r.rest = true, nil
		return 0
	}
	return int(n) //nolint:gosec // at most the length of the rest
}

// list reads things, and stops where they can't be read. A count that is a lie costs no more
// memory than what was read.
func list[T any](r *reader, count int, read func() T) []T {
	all := make([]T, 0, min(count, 1024))
	for range count {
		v := read()
		if r.bad {
			break
		}
		all = append(all, v)
	}
	return all
}

func (r *reader) spans() []keys.Span {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	return list(r, r.atMost(n-1, 2), func() keys.Span { return keys.Span{Start: r.bytes(), End: r.bytes()} })
}

// done reports an error if a part of the message was missing or malformed. What follows the
// parts that this version knows is of a later one, and is left alone.
func (r *reader) done() error {
	if r.bad {
		return errMalformed
	}
	return nil
}

// txn reads the id of a transaction, which is the rest.
func (r *reader) txn() (commit.ID, error) {
	ids, err := commit.DecodeIDs(r.rest)
	r.rest = nil
	if err != nil || len(ids) != 1 {
		r.bad = true
		return commit.ID{}, errMalformed
	}
	return ids[0], nil
}
