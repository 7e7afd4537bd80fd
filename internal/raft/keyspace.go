package raft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Below a replica's prefix every owner has a letter of its own: the machine's
// (mvcc 'h', 'k', 'm', 't'; lease 'l'; system 's'; a data shard's shape 'b', fence 'f' and
// transactions 'c') and the
// replica's.
const (
	// replicaTag opens the prefix of every replica's keys.
	replicaTag byte = 'r'
	// progressTag is the key of a replica's progress below its prefix.
	progressTag byte = 'x'

	// ownerTags are the letters of all owners, the replica's among them.
	ownerTags = "bcfhklmstx"
)

// checkTags returns an error if the records of a replica have an owner that this version
// does not know.
func checkTags(r pebble.Reader, prefix []byte) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keys.PrefixEnd(prefix)})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	return keys.CheckTags(it, prefix, ownerTags)
}

// Prefix returns the Pebble prefix of one replica's keys: a letter, the shard
// and the replica, each as eight bytes, big-endian. The replica is part of it so
// that what a former tenant left is invisible.
func Prefix(shardID, replicaID uint64) []byte {
	p := make([]byte, 0, 17)
	p = append(p, replicaTag)
	p = binary.BigEndian.AppendUint64(p, shardID)
	return binary.BigEndian.AppendUint64(p, replicaID)
}

// progress is how far a replica has come. It is written in the same Pebble
// batch as what it tells of.
type progress struct {
	// index is the Raft index of the last entry that is part of the state.
	index uint64
	// term is the term of the last accepted begin entry.
	// Invariant: it only grows.
	term uint64
	// number is the number of the last accepted batch of that term.
	// Invariant: it only grows within a term and is 0 when the term begins.
	number uint64
}

func progressKey(prefix []byte) []byte {
	return append(append([]byte(nil), prefix...), progressTag)
}

func (p progress) encode() []byte {
	v := []byte{1}
	v = binary.BigEndian.AppendUint64(v, p.index)
	v = binary.BigEndian.AppendUint64(v, p.term)
	return binary.BigEndian.AppendUint64(v, p.number)
}

func decodeProgress(v []byte) (progress, error) {
	if len(v) != 25 || v[0] != 1 {
		return progress{}, fmt.Errorf("malformed progress record of %d bytes", len(v))
	}
	return progress{
		index:  binary.BigEndian.Uint64(v[1:]),
		term:   binary.BigEndian.Uint64(v[9:]),
		number: binary.BigEndian.Uint64(v[17:]),
	}, nil
}

// readProgress returns the zero progress for a replica that has none yet.
func readProgress(r pebble.Reader, prefix []byte) (progress, error) {
	v, closer, err := r.Get(progressKey(prefix))
	if errors.Is(err, pebble.ErrNotFound) {
		return progress{}, nil
	}
	if err != nil {
		return progress{}, fmt.Errorf("read progress: %w", err)
	}
	p, err := decodeProgress(v)
	if cerr := closer.Close(); err == nil {
		err = cerr
	}
	return p, err
}
