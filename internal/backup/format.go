package backup

import "hash/crc32"

// A backup is the magic, the revision, then records of a letter, a length and a body, the last
// of which is the end, whose body is the CRC-32C of all before it. Numbers are unsigned varints,
// the checksum is big-endian.
const (
	magicName = "latchkey backup "
	magic     = magicName + Version + "\n"
)

// Version is that of the format. Records of letters that are not known are skipped.
const Version = "1"

const (
	letterBump  byte = 'b'
	letterLease byte = 'l'
	letterAuth  byte = 'a'
	letterRole  byte = 'r'
	letterUser  byte = 'u'
	letterKey   byte = 'k'
	letterEnd   byte = 'e'
)

// Align is what the length of a backup is a multiple of when zeros follow its end, without the
// SHA-256 behind it. Clients of etcd take any other length for a broken transfer.
const Align = 512

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
