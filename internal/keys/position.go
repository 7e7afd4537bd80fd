package keys

import (
	"encoding/binary"
	"math"
)

// The keyspace that is divided among shards begins with the leases, by mixed id,
// and goes on with the users' keys. The first byte of a position is its section.
const (
	leaseSection byte = 0x00
	keySection   byte = 0x01
)

// Position returns the position of a user's key. Order is kept.
func Position(key []byte) []byte {
	return append([]byte{keySection}, key...)
}

// EndPosition returns the position behind the users' keys below end; an empty
// end stands for all keys.
func EndPosition(end []byte) []byte {
	if len(end) == 0 {
		return []byte{keySection + 1}
	}
	return Position(end)
}

// LeasePosition returns the position of a lease. Ids are mixed so that those
// that clients choose spread over the section.
func LeasePosition(id int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{leaseSection}, mix(uint64(id)))
}

// mix is a bijection on 64 bits whose every output bit depends on every input
// bit: the finaliser of splitmix64. It is part of the data format.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Positions returns the span of the positions of the keys in s.
func Positions(s Span) Span {
	return Span{Start: Position(s.Start), End: EndPosition(s.End)}
}

// LeasePositions returns the span of the position of one lease.
func LeasePositions(id int64) Span {
	at := LeasePosition(id)
	return Span{Start: at, End: Next(at)}
}

// LeaseSection returns the span of all leases' positions, cut into n parts of equal
// length. n is at least 1.
func LeaseSection(n int) []Span {
	parts := make([]Span, n)
	step := math.MaxUint64/uint64(n) + 1 // 0 for n = 1
	for i := range parts {
		parts[i].Start = binary.BigEndian.AppendUint64([]byte{leaseSection}, uint64(i)*step)
		parts[i].End = []byte{keySection}
		if i > 0 {
			parts[i-1].End = parts[i].Start
		}
	}
	parts[0].Start = []byte{leaseSection}
	return parts
}

// AtPosition returns the key at a position in the section of the users' keys.
func AtPosition(position []byte) []byte { return position[1:] }
