package placement

import "encoding/binary"

// The keyspace that is divided among shards begins with the leases, by mixed id,
// and goes on with the users' keys. The first byte of a position is its section.
const (
	leaseSection byte = 0x00
	keySection   byte = 0x01
)

// KeyPosition returns the position of a user's key. Order is kept.
func KeyPosition(key []byte) []byte {
	return append([]byte{keySection}, key...)
}

// KeyEndPosition returns the position behind the users' keys below end; an empty
// end stands for all keys.
func KeyEndPosition(end []byte) []byte {
	if len(end) == 0 {
		return []byte{keySection + 1}
	}
	return KeyPosition(end)
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
