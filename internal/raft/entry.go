package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A Raft entry is one byte of format, one byte of type and the body. A begin
// entry's body is the term; a batch entry's is the term, the batch number and
// the commands, each of them with its number in the order of revisions if the batch
// is a numbered one. Integers are unsigned varints. Nothing follows: what has to be said
// beside that takes another type or format, at which earlier versions stop.
const (
	entryFormat byte = 1

	entryBegin    byte = 1
	entryBatch    byte = 2
	entryNumbered byte = 3
)

// MaxPayload bounds one command's payload in bytes. It leaves room above the
// largest request that a node accepts by default, so that the limit clients
// see is the request limit.
const MaxPayload = 64 << 20

var errBadEntry = errors.New("malformed entry")

// CommandID names a command for ever: a random number drawn when the process
// that holds the client's call started, and a running number there. An id is in
// at most one batch.
type CommandID struct {
	Origin   uint64
	Sequence uint64
}

// Kind says what a command's payload is. Each machine has its own kinds.
type Kind uint8

// Command is one replicated instruction. The payload belongs to the command;
// while it is being applied it is valid only until Apply returns.
type Command struct {
	ID CommandID
	// Number is the first of the command's numbers, 0 if it has none; of one that announces a number
	// it is lower than that.
	Number int64
	// Compacted is the compaction revision that the cluster had when the command got
	// its number, -1 before the first compaction and without a number. The shard's
	// own may be behind it.
	Compacted int64
	Kind      Kind
	Payload   []byte
}

// batchHeader is what a batch entry says before its commands.
type batchHeader struct {
	term   uint64
	number uint64
	count  uint64
	// numbered says that the commands have numbers.
	numbered bool
	// compacted is the cluster's compaction revision when the numbers were handed
	// out, -1 before the first compaction; only of a numbered batch.
	compacted int64
}

func appendBegin(dst []byte, term uint64) []byte {
	dst = append(dst, entryFormat, entryBegin)
	return binary.AppendUvarint(dst, term)
}

func appendBatchHeader(dst []byte, h batchHeader) []byte {
	kind := entryBatch
	if h.numbered {
		kind = entryNumbered
	}
	dst = append(dst, entryFormat, kind)
	dst = binary.AppendUvarint(dst, h.term)
	dst = binary.AppendUvarint(dst, h.number)
	dst = binary.AppendUvarint(dst, h.count)
	if h.numbered {
		dst = binary.AppendVarint(dst, h.compacted)
	}
	return dst
}

func appendCommand(dst []byte, c Command, numbered bool) []byte {
	dst = binary.BigEndian.AppendUint64(dst, c.ID.Origin)
	dst = binary.AppendUvarint(dst, c.ID.Sequence)
	if numbered {
		dst = binary.AppendUvarint(dst, uint64(c.Number))
	}
	dst = append(dst, byte(c.Kind))
	dst = binary.AppendUvarint(dst, uint64(len(c.Payload)))
	return append(dst, c.Payload...)
}

// entryReader takes an entry apart without copying it.
type entryReader struct {
	rest []byte
}

// open returns the entry's type.
func (r *entryReader) open(entry []byte) (byte, error) {
	if len(entry) < 2 {
		return 0, errBadEntry
	}
	if entry[0] != entryFormat {
		return 0, fmt.Errorf("entry of format %d: %w", entry[0], keys.ErrNewer)
	}
	r.rest = entry[2:]
	return entry[1], nil
}

// end returns an error if anything is left.
func (r *entryReader) end() error {
	if len(r.rest) > 0 {
		return fmt.Errorf("%d bytes behind an entry: %w", len(r.rest), keys.ErrNewer)
	}
	return nil
}

func (r *entryReader) uvarint() (uint64, error) {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return 0, errBadEntry
	}
	r.rest = r.rest[n:]
	return v, nil
}

func (r *entryReader) batchHeader(numbered bool) (h batchHeader, err error) {
	for _, p := range []*uint64{&h.term, &h.number, &h.count} {
		if *p, err = r.uvarint(); err != nil {
			return batchHeader{}, err
		}
	}
	h.numbered, h.compacted = numbered, -1
	if numbered {
		v, n := binary.Varint(r.rest)
		if n <= 0 {
			return batchHeader{}, errBadEntry
		}
		h.compacted, r.rest = v, r.rest[n:]
	}
	return h, nil
}

// command returns the next command, whose payload aliases the entry.
func (r *entryReader) command(numbered bool) (c Command, err error) {
	if len(r.rest) < 8 {
		return Command{}, errBadEntry
	}
	c.ID.Origin = binary.BigEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	if c.ID.Sequence, err = r.uvarint(); err != nil {
		return Command{}, err
	}
	if numbered {
		number, err := r.uvarint()
		if err != nil || number > math.MaxInt64 {
			return Command{}, errBadEntry
		}
		c.Number = int64(number)
	}
	if len(r.rest) == 0 {
		return Command{}, errBadEntry
	}
	c.Kind = Kind(r.rest[0])
	r.rest = r.rest[1:]
	n, err := r.uvarint()
	if err != nil {
		return Command{}, err
	}
	if uint64(len(r.rest)) < n {
		return Command{}, errBadEntry
	}
	c.Payload = r.rest[:n:n]
	r.rest = r.rest[n:]
	return c, nil
}
