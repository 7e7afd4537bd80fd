package raftlog

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	frameHeader = 24
	frameAlign  = 8

	lengthAt = 4
	idAt     = 8
	syncedAt = 16

	// randomBits are the bits of a segment's id that are not its number.
	randomBits = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// beginFrame leaves room for a frame's header.
func beginFrame(b []byte) []byte { return append(b, make([]byte, frameHeader)...) }

// endFrame completes the frame that begins at start: what follows its header is its payload.
func endFrame(b []byte, start int, id, synced uint64) []byte {
	f := b[start:]
	binary.LittleEndian.PutUint32(f[lengthAt:], uint32(len(f)-frameHeader))
	binary.LittleEndian.PutUint64(f[idAt:], id)
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

// identify returns the id of the segment with a number whose frame is at an offset, and reports
// whether that can be one.
func identify(data []byte, at int64, number uint64) (id uint64, ok bool) {
	if int64(len(data)) < at+frameHeader {
		return 0, false
	}
	id = binary.LittleEndian.Uint64(data[at+idAt:])
	return id, id>>randomBits == number
}

// readFrame reads the frame at an offset of a segment, and reports whether it is whole and that
// segment's.
func readFrame(data []byte, at int64, id uint64) (frame, bool) {
	f := data[min(at, int64(len(data))):]
	if len(f) < frameHeader || binary.LittleEndian.Uint64(f[idAt:]) != id {
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

// findSynced returns the offset of a whole frame behind a broken one at offset broken which
// shows that the broken one had been fsynced. Of a segment whose first frame is broken the id is
// not known, so that any with its number counts.
func findSynced(data []byte, broken int64, number, id uint64) (int64, bool) {
	for at := broken + frameAlign; at+frameHeader <= int64(len(data)); at += frameAlign {
		found, ok := identify(data, at, number)
		if !ok || broken > 0 && found != id {
			continue
		}
		if f, ok := readFrame(data, at, found); ok && f.synced > uint64(broken) {
			return at, true
		}
	}
	return 0, false
}
