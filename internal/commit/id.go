package commit

import (
	"cmp"
	"encoding/binary"
	"errors"
)

// ID names one attempt at a transaction for ever.
type ID struct {
	// Node is the member id of the node that coordinates it.
	Node uint64
	// Boot is a number that the node drew when it started, above those of earlier starts.
	Boot uint64
	// Counter counts the attempts of the boot.
	Counter uint64
}

// idLen is the length of an encoded id.
const idLen = 24

// Key returns the id as bytes that sort by node, then as the node drew them.
func (id ID) Key() string { return string(id.append(nil)) }

func (id ID) append(dst []byte) []byte {
	for _, v := range []uint64{id.Node, id.Boot, id.Counter} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// FromKey is the inverse of Key.
func FromKey(key string) (ID, error) {
	if len(key) != idLen {
		return ID{}, errMalformed
	}
	b := []byte(key)
	return ID{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, nil
}

// before reports whether id was drawn before other, an id of the same node.
func (id ID) before(other ID) bool {
	return id.Boot < other.Boot || id.Boot == other.Boot && id.Counter < other.Counter
}

// Age orders transactions that meet. All attempts of one have the same.
type Age struct {
	// Rev is a revision that had been issued when the transaction came.
	Rev int64
	// First is its first attempt.
	First ID
}

// Compare orders the older first.
func (a Age) Compare(b Age) int {
	return cmp.Or(cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.First.Node, b.First.Node),
		cmp.Compare(a.First.Boot, b.First.Boot), cmp.Compare(a.First.Counter, b.First.Counter))
}

var errMalformed = errors.New("malformed message of a transaction")
