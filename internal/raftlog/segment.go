package raftlog

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/lni/vfs"
)

const (
	suffix = ".log"
	// maxFill is by how much a file grows at once, at the most: a write that does not change a
	// file's length is synced without the file system's own log.
	maxFill = 256 << 10
)

var zeros [maxFill]byte

// segment is one file of a log.
type segment struct {
	number uint64
	// id is the number and random bits behind it.
	id   uint64
	path string
	// file is for writing; nil once the segment is sealed.
	file vfs.File
	// reader is for reading.
	reader vfs.File
	// end is where the next frame begins, filled the file's length, and synced what is known
	// to be durable.
	end, filled, synced int64
	// fill is by how much the file grows at once.
	fill int64
	// live is how many bytes there are of entries that are still needed.
	live int64
}

func fileName(number uint64) string { return fmt.Sprintf("%016d%s", number, suffix) }

// fileNumber returns the number of a segment's file.
func fileNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// create makes a segment's file, of the one at old if that is not empty.
func (o Options) create(number uint64, old string) (*segment, error) {
	fs := o.FS
	s := &segment{
		number: number, id: number<<randomBits | uint64(rand.Uint32()), path: fs.PathJoin(o.Dir, fileName(number)),
		fill: min(maxFill, o.SegmentBytes),
	}
	if old != "" {
		var err error
		if s.file, err = fs.ReuseForWrite(old, s.path); err != nil {
			o.NotReused(old, err) // a new file does as well
			_ = fs.Remove(old)    // or it is removed at the next start
		}
	}
	if s.file == nil {
		var err error
		if s.file, err = fs.Create(s.path); err != nil {
			return nil, err
		}
	}
	info, err := s.file.Stat()
	if err == nil {
		s.filled = info.Size()
		s.reader, err = fs.Open(s.path)
	}
	if err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// write writes what belongs at an offset, which is not beyond what was written before.
func (s *segment) write(b []byte, at int64) error {
	if _, err := s.file.WriteAt(b, at); err != nil {
		return err
	}
	end := at + int64(len(b))
	if end <= s.filled {
		return nil
	}
	if _, err := s.file.WriteAt(zeros[:s.fill], end); err != nil {
		return err
	}
	s.filled = end + s.fill
	return nil
}

// read fills b with what is at an offset.
func (s *segment) read(b []byte, at int64) error {
	n, err := s.reader.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %s at offset %d: %w", s.path, at, err)
}

// seal closes a segment for writing.
func (s *segment) seal() error {
	err := s.file.Close()
	s.file = nil
	return err
}

// close closes the files.
func (s *segment) close() error {
	var err error
	if s.file != nil {
		err = s.seal()
	}
	return errors.Join(err, s.reader.Close())
}

// SyncDir makes the names in a directory durable.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
