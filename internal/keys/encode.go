package keys

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// ErrEncoding is returned when bytes are not what an encoder of this package
// writes.
var ErrEncoding = errors.New("keys: malformed encoding")

// An escaped key is the key with each 0x00 written as 0x00 0xff, followed by
// the terminator 0x00 0x01. The terminator sorts below every continuation, so
// that a key sorts before the keys that it is a prefix of.
const (
	escape     = 0x00
	escaped    = 0xff
	terminator = 0x01
)

// AppendEscaped appends the escaped form of key to dst and returns the result.
func AppendEscaped(dst, key []byte) []byte {
	for {
		i := bytes.IndexByte(key, escape)
		if i < 0 {
			break
		}
		dst = append(dst, key[:i]...)
		dst = append(dst, escape, escaped)
		key = key[i+1:]
	}
	dst = append(dst, key...)
	return append(dst, escape, terminator)
}

// EscapedLen returns the number of bytes that AppendEscaped appends for key.
func EscapedLen(key []byte) int {
	return len(key) + bytes.Count(key, []byte{escape}) + 2
}

// Unescape appends the key whose escaped form src begins with to dst. It
// returns the result and what follows in src.
func Unescape(dst, src []byte) (key, rest []byte, err error) {
	for {
		i := bytes.IndexByte(src, escape)
		if i < 0 || i+1 >= len(src) {
			return dst, nil, ErrEncoding
		}
		dst = append(dst, src[:i]...)
		mark := src[i+1]
		src = src[i+2:]
		switch mark {
		case terminator:
			return dst, src, nil
		case escaped:
			dst = append(dst, escape)
		default:
			return dst, nil, ErrEncoding
		}
	}
}

const signBit = 1 << 63

// AppendInt64 appends v in eight bytes that sort as v does.
func AppendInt64(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(v)^signBit)
}

// AppendInt64Desc appends v in eight bytes that sort against v's order.
func AppendInt64Desc(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(dst, ^(uint64(v) ^ signBit))
}

// CutInt64 reads what AppendInt64 wrote at the front of src and returns it with
// what follows.
func CutInt64(src []byte) (v int64, rest []byte, err error) {
	if len(src) < 8 {
		return 0, nil, ErrEncoding
	}
	return int64(binary.BigEndian.Uint64(src) ^ signBit), src[8:], nil
}

// CutInt64Desc reads what AppendInt64Desc wrote at the front of src and returns
// it with what follows.
func CutInt64Desc(src []byte) (v int64, rest []byte, err error) {
	if len(src) < 8 {
		return 0, nil, ErrEncoding
	}
	return int64(^binary.BigEndian.Uint64(src) ^ signBit), src[8:], nil
}

// AppendUint32 appends v in four bytes that sort as v does.
func AppendUint32(dst []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, v)
}

// AppendUint32Desc appends v in four bytes that sort against v's order.
func AppendUint32Desc(dst []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, ^v)
}

// CutUint32 reads what AppendUint32 wrote at the front of src and returns it
// with what follows.
func CutUint32(src []byte) (v uint32, rest []byte, err error) {
	if len(src) < 4 {
		return 0, nil, ErrEncoding
	}
	return binary.BigEndian.Uint32(src), src[4:], nil
}

// CutUint32Desc reads what AppendUint32Desc wrote at the front of src and
// returns it with what follows.
func CutUint32Desc(src []byte) (v uint32, rest []byte, err error) {
	if len(src) < 4 {
		return 0, nil, ErrEncoding
	}
	return ^binary.BigEndian.Uint32(src), src[4:], nil
}
