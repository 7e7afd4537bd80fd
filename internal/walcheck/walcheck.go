// Package walcheck tells a damaged write-ahead log from one whose tail was torn
// by a crash, before the log store opens it.
//
// The store of Raft's log takes the first record that it can't read for the end
// of the newest file: what a crash leaves looks like that. So does a bit that
// the disk flipped in the middle, and then everything behind it, which was
// acknowledged, is gone without a word. The difference is what comes after: behind
// a torn tail there is nothing, behind damage there are records.
//
// A power cut may keep any parts of what was written since the last fsync. Of two records
// in one unfinished fsync the second could be whole and the first not, which would look like
// damage. So who writes a log writes one record at a time, and fsyncs it before the next
// (internal/raft/logstore.go). The middle and the end of a record of several chunks prove nothing.
package walcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/lni/vfs"
)

// ErrDamaged is returned when a log has whole records behind a broken one.
var ErrDamaged = errors.New("write-ahead log is damaged")

// A log is a sequence of blocks, and a block of chunks, none of which crosses its
// end: four bytes of checksum over all that follows in the chunk, two of payload
// length, one of type, four of the log's number, the payload; numbers are
// little-endian. A record is one full chunk, or a first, any number of middle and
// a last one. What is left of a block that is too short for a header is zero.
const (
	blockSize  = 32 << 10
	headerSize = 11

	typeAt    = 6
	numberAt  = 7
	fullType  = 5
	firstType = 6
	lastType  = 8
)

// walSuffix ends the name of a log file, before which stands its number.
const walSuffix = ".log"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Dirs checks the newest log of every store below root, which need not exist. An
// error wraps ErrDamaged and names the file and the offset, or says what could
// not be read.
func Dirs(fs vfs.FS, root string) error {
	if _, err := fs.Stat(root); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	names, err := fs.List(root)
	if err != nil {
		return fmt.Errorf("list %s: %w", root, err)
	}
	newest, number := "", uint64(0)
	for _, name := range names {
		path := fs.PathJoin(root, name)
		if n, ok := walNumber(name); ok {
			if newest == "" || n > number {
				newest, number = path, n
			}
			continue
		}
		if info, err := fs.Stat(path); err == nil && info.IsDir() {
			if err := Dirs(fs, path); err != nil {
				return err
			}
		}
	}
	if newest == "" {
		return nil
	}
	return checkFile(fs, newest, uint32(number))
}

func walNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, walSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

func checkFile(fs vfs.FS, path string, number uint32) error {
	f, err := fs.Open(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	log, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	end := tail(log, number)
	if next, ok := findRecord(log, end, number); ok {
		return fmt.Errorf("%w: %s has an unreadable record at offset %d and whole records behind it, the first at %d; "+
			"check the disk, then put a good copy of the file back; a node that is lost can't be replaced in this version, and the others go on without it",
			ErrDamaged, path, end, next)
	}
	return nil
}

// tail returns the offset of the first chunk that can't be read, or the log's
// length.
func tail(log []byte, number uint32) int {
	at := 0
	for at < len(log) {
		left := blockSize - at%blockSize
		if left < headerSize {
			at += left
			continue
		}
		n, ok := chunk(log, at, number)
		if !ok {
			return at
		}
		at += n
	}
	return len(log)
}

// chunk returns the length of the chunk at an offset and whether it is whole and
// this log's.
func chunk(log []byte, at int, number uint32) (int, bool) {
	rest := log[at:min(len(log), at+blockSize-at%blockSize)]
	if len(rest) < headerSize {
		return 0, false
	}
	kind := rest[typeAt]
	if kind < fullType || kind > lastType || binary.LittleEndian.Uint32(rest[numberAt:]) != number {
		return 0, false
	}
	n := headerSize + int(binary.LittleEndian.Uint16(rest[4:]))
	if n > len(rest) {
		return 0, false
	}
	return n, binary.LittleEndian.Uint32(rest) == mask(crc32.Checksum(rest[typeAt:n], castagnoli))
}

// mask is what the store does to a checksum, so that data that holds checksums
// does not look like chunks.
func mask(sum uint32) uint32 { return (sum>>15 | sum<<17) + 0xa282ead8 }

// findRecord returns the offset of the first whole chunk behind end that begins a
// record.
func findRecord(log []byte, end int, number uint32) (int, bool) {
	for at := end + 1; at+headerSize <= len(log); at++ {
		if kind := log[at+typeAt]; kind != fullType && kind != firstType {
			continue
		}
		if _, ok := chunk(log, at, number); ok {
			return at, true
		}
	}
	return 0, false
}
