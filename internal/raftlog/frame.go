package raftlog

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	frameHeader = 24
	frameAlign  = 8

	lengthAt = 4
	numberAt = 8
	syncedAt = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// beginFrame leaves room for a frame's header.
func beginFrame(b []byte) []byte { return append(b, make([]byte, frameHeader)...) }

// endFrame completes the frame that begins at start: what follows its header is its payload.
func endFrame(b []byte, start int, number, synced uint64) []byte {
	f := b[start:]
	binary.LittleEndian.PutUint32(f[lengthAt:], uint32(len(f)-frameHeader))
	binary.LittleEndian.PutUint64(f[numberAt:], number)
	binary.LittleEndian.PutUint64(f[syncedAt:], synced)
	binary.LittleEndian.PutUint32(f, crc32.Checksum(f[lengthAt:], castagnoli))
	return append(b, make([]byte, padding(len(f)))...)
}

// padding is how many zeros follow a frame of n bytes.
func padding(n int) int { return -n & (frameAlign - 1) }

// frame is one that was read.
type frame struct {
	payload []byte
	// at is the payload's offset in the segment, and next the next frame's.
	at, next int64
	// synced is the offset up to which the segment had been fsynced when the frame was made.
	synced uint64
}

// readFrame reads the frame at an offset of a segment, and reports whether it is whole and that
// segment's.
func readFrame(data []byte, at int64, number uint64) (frame, bool) {
	f := data[min(at, int64(len(data))):]
	if len(f) < frameHeader || binary.LittleEndian.Uint64(f[numberAt:]) != number {
		return frame{}, false
	}
	end := frameHeader + int64(binary.LittleEndian.Uint32(f[lengthAt:]))
	if end > int64(len(f)) || binary.LittleEndian.Uint32(f) != crc32.Checksum(f[lengthAt:end], castagnoli) {
		return frame{}, false
	}
	return frame{
		payload: f[frameHeader:end], at: at + frameHeader, next: at + end + int64(padding(int(end))),
		synced: binary.LittleEndian.Uint64(f[syncedAt:]),
	}, true
}

// findWitness returns the offset of a whole frame behind a broken one at offset broken which
// shows that the broken one had been fsynced.
func findWitness(data []byte, broken int64, number uint64) (int64, bool) {
	for at := broken + frameAlign; at+frameHeader <= int64(len(data)); at += frameAlign {
		if f, ok := readFrame(data, at, number); ok && f.synced > uint64(broken) {
			return at, true
		}
	}
	return 0, false
}
