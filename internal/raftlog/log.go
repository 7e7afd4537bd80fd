package raftlog

import (
	"fmt"
	"sync"
	"time"

	"github.com/lni/vfs"
)

// Options say how a log is kept.
type Options struct {
	// FS is the file system and Dir the log's directory, which is made.
	FS  vfs.FS
	Dir string
	// Made says that the log was made at an earlier start. It must be there.
	Made bool
	// ReadOnly has the log be read as it is: nothing in the directory changes, and nothing may be written. It must be there.
	ReadOnly bool
	// SegmentBytes is the length at which a segment is sealed; 0 is the default.
	SegmentBytes int64
	// Synced, unless nil, is told of each write that was fsynced, how many bytes it had and how
	// long it took.
	Synced func(bytes int, took time.Duration)
	// NotReused, unless nil, is told of a file that can't be used again.
	NotReused func(path string, err error)
}

// segmentBytes makes one checkpoint and one new file for some 50,000 small writes.
const segmentBytes = 16 << 20

// Log is the log of a host. It may be used by several goroutines.
type Log struct {
	opts Options

	// io is held while files are written, fsynced, made and removed. It is taken before mu.
	io sync.Mutex
	// spare is the path of a file that may be used again, or empty; protected by io.
	spare string

	// reading is held for reading while entries are read, and for writing while the files of
	// segments are closed. It is taken before mu.
	reading sync.RWMutex

	mu sync.Mutex
	// All below is protected by mu.
	replicas map[member]*replica
	// segments are those that are needed, by number. The last one is written to.
	segments []*segment
	// number is the highest that a segment's file ever had.
	number uint64
	// pending are frames that have their place in the last segment, behind its end, and are not
	// yet written; idle is a buffer for the next ones.
	pending, idle []byte
	// made counts frames; written and synced are how many of them are in the file and on
	// the disk.
	made, written, synced uint64
	// err is what the first write that failed returned: the log ends with it, since what
	// the disk has of it can't be known.
	err    error
	closed bool
}

// last is the segment that is written to. l.mu must be held.
func (l *Log) last() *segment { return l.segments[len(l.segments)-1] }

// begin begins a frame, and returns its start and the offset in the segment of what pending begins
// with. l.mu must be held until end.
func (l *Log) begin() (start int, base int64) {
	start = len(l.pending)
	l.pending = beginFrame(l.pending)
	return start, l.last().end
}

// end completes the frame that begins at start, and returns its number. A frame without items is
// taken back. l.mu must be held.
func (l *Log) end(start int) uint64 {
	if len(l.pending) == start+frameHeader {
		l.pending = l.pending[:start]
		return 0
	}
	s := l.last()
	l.pending = endFrame(l.pending, start, s.id, uint64(s.synced))
	l.made++
	return l.made
}

// flush writes frames up to the one with a number, and fsyncs them if wanted. Frames that others have
// made meanwhile go with them.
func (l *Log) flush(number uint64, durable bool) error {
	if !durable && !l.io.TryLock() {
		return nil // who holds it, or comes next, writes it
	} else if durable {
		l.io.Lock()
	}
	defer l.io.Unlock()
	began := time.Now()
	l.mu.Lock()
	if l.err != nil || !durable && l.written >= number || l.synced >= number {
		defer l.mu.Unlock()
		return l.err
	}
	s, b, at, upto := l.take()
	l.mu.Unlock()
	err := s.write(b, at)
	if err == nil && durable {
		err = syncData(s.file)
	}
	full, err := l.flushed(s, b, upto, durable, err)
	if err != nil {
		return err
	}
	if durable {
		l.opts.Synced(len(b), time.Since(began))
	}
	if full {
		return l.roll()
	}
	return nil
}

// take returns what is to be written, where, and the number of its last frame. l.mu must be
// held.
func (l *Log) take() (s *segment, b []byte, at int64, upto uint64) {
	s, b = l.last(), l.pending
	at = s.end
	s.end += int64(len(b))
	l.pending, l.idle = l.idle[:0], nil
	return s, b, at, l.made
}

// maxIdle is how large a buffer may be that is kept for the next frames.
const maxIdle = 1 << 20

// flushed notes that frames were written, or why they could not be. It returns whether the
// segment is full.
func (l *Log) flushed(s *segment, b []byte, upto uint64, durable bool, err error) (full bool, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = fmt.Errorf("write %s: %w", s.path, err)
		return false, l.err
	}
	l.written = upto
	if durable {
		l.synced, s.synced = upto, s.end
	}
	if cap(b) <= maxIdle {
		l.idle = b
	}
	return s.end >= l.opts.SegmentBytes, nil
}

// Close writes what is pending and closes the files.
func (l *Log) Close() error {
	l.mu.Lock()
	made, closed := l.made, l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if !l.opts.ReadOnly {
		err = l.flush(made, true)
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		if closing := s.close(); err == nil {
			err = closing
		}
	}
	if l.err == nil {
		l.err = errClosed
	}
	return err
}
