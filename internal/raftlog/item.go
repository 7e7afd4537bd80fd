package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// member names one replica of a shard.
type member struct{ shardID, replicaID uint64 }

func (m member) String() string { return fmt.Sprintf("replica %d of shard %d", m.replicaID, m.shardID) }

// kind says what an item tells of its replica. Kinds are never renumbered. A log with a
// kind that this version doesn't know is refused.
type kind uint8

const (
	// kindBootstrap, kindState: the message of dragonboat.
	kindBootstrap kind = 1
	kindState     kind = 2
	// kindSnapshot: one that the replica made of its own state.
	kindSnapshot kind = 3
	// kindInstalled: a snapshot that takes the place of all entries.
	kindInstalled kind = 4
	// kindEntries: entries that follow one another, behind which there is nothing.
	kindEntries kind = 5
	// kindCopied: entries that were written before, whose segment is no longer needed.
	kindCopied kind = 6
	// kindRemoved: all that the log had of the replica is gone.
	kindRemoved kind = 7
	// kindRange: the index of the first entry that is needed, and that of the last (one
	// less than the first if there is none), 8 bytes each. In checkpoints only, where it
	// begins what is said of the replica.
	kindRange kind = 8
	// kindSegment: a segment that is needed, and its length, 8 bytes each. In checkpoints
	// only, where the replica is of no meaning.
	kindSegment kind = 9
	// kindCheckpoint ends what a checkpoint says of segments and replicas.
	kindCheckpoint kind = 10
)

var (
	// ErrDamaged is returned for a log of which something can't be read that had been fsynced.
	ErrDamaged = errors.New("the Raft log is damaged")
	// errNewer is returned for a log that a later version wrote.
	errNewer = errors.New("the Raft log was written by a later version, start that one")
)

// item is what a frame says of one replica.
type item struct {
	kind kind
	member
	body []byte
	// at is the body's offset in the segment.
	at int64
}

// An item is its kind (1 byte), the shard's and the replica's id (8 each), the length of the
// body (4), and the body.
const itemHeader = 1 + 8 + 8 + 4

// beginItem begins an item, whose body is to be appended.
func beginItem(b []byte, k kind, m member) []byte {
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint64(b, m.shardID)
	b = binary.LittleEndian.AppendUint64(b, m.replicaID)
	return append(b, 0, 0, 0, 0)
}

// endItem completes the item that begins at start.
func endItem(b []byte, start int) []byte {
	binary.LittleEndian.PutUint32(b[start+itemHeader-4:], uint32(len(b)-start-itemHeader))
	return b
}

// message is one of dragonboat's.
type message interface {
	Size() int
	MarshalTo(b []byte) (int, error)
}

// appendMessage appends an item whose body is a message.
func appendMessage(b []byte, k kind, m member, msg message) []byte {
	start := len(b)
	b = beginItem(b, k, m)
	return endItem(marshal(b, msg), start)
}

// marshal appends a message.
func marshal(b []byte, msg message) []byte {
	start := len(b)
	b = append(b, make([]byte, msg.Size())...)
	n, err := msg.MarshalTo(b[start:])
	if err != nil {
		invariant.Violated("a message is longer than it says: %v", err)
	}
	return b[:start+n]
}

// appendNumbers appends an item whose body is numbers of 8 bytes each.
func appendNumbers(b []byte, k kind, m member, numbers ...uint64) []byte {
	start := len(b)
	b = beginItem(b, k, m)
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return endItem(b, start)
}

// numbers reads a body of n numbers.
func (i item) numbers(n int) ([]uint64, error) {
	if len(i.body) != 8*n {
		return nil, fmt.Errorf("%w: an item of kind %d has %d bytes", ErrDamaged, i.kind, len(i.body))
	}
	numbers := make([]uint64, n)
	for j := range numbers {
		numbers[j] = binary.LittleEndian.Uint64(i.body[8*j:])
	}
	return numbers, nil
}

// Of entries the body is the index of the first (8 bytes), then for each its length (4), a
// checksum of its bytes (4) and these: they are read one by one, without their frame.
const entryHeader = 8

// appendEntry appends an entry to the body of an item.
func appendEntry(b []byte, e *raftpb.Entry) []byte {
	start := len(b)
	b = append(b, make([]byte, entryHeader)...)
	b = marshal(b, e)
	bytes := b[start+entryHeader:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(bytes)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(bytes, castagnoli))
	return b
}

// readEntry reads an entry, which keeps parts of b.
func readEntry(b []byte) (e raftpb.Entry, err error) {
	if len(b) < entryHeader || len(b) != entryHeader+int(binary.LittleEndian.Uint32(b)) ||
		binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[entryHeader:], castagnoli) {
		return e, fmt.Errorf("%w: an entry's checksum is wrong; %s", ErrDamaged, remedy)
	}
	err = e.Unmarshal(b[entryHeader:])
	return e, err
}

// entries calls visit with the offset in the segment and the length of each entry.
func (i item) entries(visit func(index uint64, at int64, length uint32)) error {
	if len(i.body) < 8 {
		return fmt.Errorf("%w: an item of entries has %d bytes", ErrDamaged, len(i.body))
	}
	index, rest := binary.LittleEndian.Uint64(i.body), i.body[8:]
	for len(rest) > 0 {
		n := int64(entryHeader)
		if len(rest) >= entryHeader {
			n += int64(binary.LittleEndian.Uint32(rest))
		}
		if n > int64(len(rest)) {
			return fmt.Errorf("%w: entry %d is longer than its item", ErrDamaged, index)
		}
		visit(index, i.at+int64(len(i.body)-len(rest)), uint32(n))
		index, rest = index+1, rest[n:]
	}
	return nil
}

// eachItem calls visit with the items of a frame.
func eachItem(f frame, visit func(item) error) error {
	for b := f.payload; len(b) > 0; {
		if len(b) < itemHeader {
			return fmt.Errorf("%w: an item is cut", ErrDamaged)
		}
		n := int64(binary.LittleEndian.Uint32(b[itemHeader-4:]))
		if n > int64(len(b)-itemHeader) {
			return fmt.Errorf("%w: an item is longer than its frame", ErrDamaged)
		}
		i := item{
			kind: kind(b[0]), member: member{binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:])},
			body: b[itemHeader : itemHeader+n], at: f.at + int64(len(f.payload)-len(b)+itemHeader),
		}
		if err := visit(i); err != nil {
			return err
		}
		b = b[itemHeader+n:]
	}
	return nil
}
