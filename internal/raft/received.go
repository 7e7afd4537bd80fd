package raft

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/lni/dragonboat/v4/raftpb"
	raftvfs "github.com/lni/vfs"
)

// The file of a snapshot that another node sent: a header, the payload in blocks, each
// with its CRC-32 behind it, then the length of payload and checksums, little-endian,
// and a magic number.
const (
	receivedHeader = 1024
	receivedBlock  = 2 << 20
	receivedTail   = 16
	receivedMagic  = "\x3f\x5b\xcb\xf1\xfa\xba\x81\x9f"
	// shrunkPayload is the length of what is left of a payload after it was loaded: two
	// numbers, the second of them 0.
	shrunkPayload = 16
)

var errNotWhole = errors.New("the file is not whole")

// checkReceived refuses a snapshot that came from another node and is to be loaded, but
// is not whole, or was loaded before into a state that is gone. root is the directory
// above those of snapshots.
func checkReceived(fsys raftvfs.FS, root string, ss raftpb.Snapshot) error {
	// The path that was written down may be of another directory or host.
	path, rest := "", ss.Filepath
	for range 4 { // snapshot-part-N, snapshot-shard-replica, snapshot-index and the file
		path, rest = fsys.PathJoin(fsys.PathBase(rest), path), fsys.PathDir(rest)
	}
	path = fsys.PathJoin(root, path)
	shrunk, err := readReceived(fsys, path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the state lacks a snapshot that another node sent, and %s can't be read (%w); %s", ErrDisagree, path, err, remedy)
	case shrunk:
		return fmt.Errorf("%w: the state lacks a snapshot that it once loaded, up to entry %d: it is an older copy, or lost; %s",
			ErrDisagree, ss.OnDiskIndex, remedy)
	}
	return nil
}

// readReceived checks a snapshot's file, and reports whether its content was dropped
// after it was loaded.
func readReceived(fsys raftvfs.FS, path string) (shrunk bool, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	in := bufio.NewReader(f)
	header := make([]byte, receivedHeader)
	if _, err := io.ReadFull(in, header); err != nil {
		return false, fmt.Errorf("%w: %w", errNotWhole, err)
	}
	if !wholeHeader(header) {
		return false, fmt.Errorf("%w: its header is damaged", errNotWhole)
	}
	left := info.Size() - receivedHeader - receivedTail
	tail := binary.LittleEndian.AppendUint64(nil, uint64(max(left, 0)))
	block := make([]byte, receivedBlock+crc32.Size)
	for first := true; left > 0; first = false {
		block = block[:min(left, int64(cap(block)))]
		if _, err := io.ReadFull(in, block); err != nil {
			return false, fmt.Errorf("%w: %w", errNotWhole, err)
		}
		left -= int64(len(block))
		payload := block[:max(0, len(block)-crc32.Size)]
		if crc32.ChecksumIEEE(payload) != binary.BigEndian.Uint32(block[len(payload):]) {
			return false, fmt.Errorf("%w: a block is damaged", errNotWhole)
		}
		shrunk = first && left == 0 && len(payload) == shrunkPayload && binary.LittleEndian.Uint64(payload[8:]) == 0
	}
	end, err := io.ReadAll(in)
	if err == nil && string(end) != string(tail)+receivedMagic {
		err = fmt.Errorf("%w: its end is missing", errNotWhole)
	}
	return shrunk, err
}

// wholeHeader checks a header: its length, itself, and its CRC-32 or 0 for none.
func wholeHeader(header []byte) bool {
	n := binary.LittleEndian.Uint64(header)
	if n > receivedHeader-8-crc32.Size {
		return false
	}
	sum := binary.BigEndian.Uint32(header[8+n:])
	return sum == 0 || sum == crc32.ChecksumIEEE(header[8:8+n])
}
