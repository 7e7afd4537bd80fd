package raftlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

// remedy says what to do about a damaged log.
const remedy = "check the disk, then put a good copy of the file back, or replace it: remove the member, add it again, and start it with an empty directory (etcdctl member remove, member add; see docs/operations.md)"

// errMissing is returned for a file that is gone.
var errMissing = errors.New("a file of the log is missing")

// errReadOnly is returned for writes of a log that was opened to be read.
var errReadOnly = errors.New("the log was opened to be read")

// Open reads a log, or makes it. An error wraps ErrDamaged if what had been fsynced can't be
// read, and names the file and the offset.
func Open(o Options) (*Log, error) {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, segmentBytes)
	if o.Synced == nil {
		o.Synced = func(int, time.Duration) {}
	}
	if o.NotReused == nil {
		o.NotReused = func(string, error) {}
	}
	l := &Log{opts: o, replicas: make(map[member]*replica)}
	if o.ReadOnly {
		l.opts.Made, l.err = true, errReadOnly
	} else if err := makeDir(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("make %s: %w", o.Dir, err)
	}
	numbers, err := list(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	if err := l.recover(numbers); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	if o.ReadOnly {
		return l, nil
	}
	if err := l.roll(); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	return l, nil
}

// makeDir makes a directory, and those above it, durably.
func makeDir(fs vfs.FS, dir string) error {
	above := fs.PathDir(dir)
	if above == dir {
		return nil
	}
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := makeDir(fs, above); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return SyncDir(fs, above)
}

// list returns the numbers of the files in a log's directory, the newest first.
func list(fs vfs.FS, dir string) ([]uint64, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := fileNumber(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int { return cmp.Compare(b, a) })
	return numbers, nil
}

// content is a segment's file that was read.
type content struct {
	*segment
	data []byte
}

// read reads a segment's file.
func (l *Log) read(number uint64) (content, error) {
	path := l.opts.FS.PathJoin(l.opts.Dir, fileName(number))
	f, err := l.opts.FS.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return content{}, fmt.Errorf("%w: %w: %s; %s", ErrDamaged, errMissing, path, remedy)
	}
	if err != nil {
		return content{}, fmt.Errorf("open %s: %w", path, err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return content{}, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	c := content{&segment{number: number, path: path, reader: f, filled: int64(len(data))}, data}
	c.id, _ = identify(data, 0, number)
	return c, nil
}

// recover reads the segments that are needed, and removes what else there is if the log may be written.
func (l *Log) recover(numbers []uint64) error {
	newest, begun, err := l.newest(numbers)
	if err != nil {
		return err
	}
	if len(numbers) > 0 {
		l.number = numbers[0]
	}
	if !begun {
		if l.opts.Made {
			return fmt.Errorf("%w: %w: there is none in %s; %s", ErrDamaged, errMissing, l.opts.Dir, remedy)
		}
		return l.tidy(numbers)
	}
	first, _ := readFrame(newest.data, 0, newest.id)
	lengths := make(map[uint64]int64)
	err = eachItem(first, func(i item) error {
		if i.kind != kindSegment {
			return nil
		}
		n, err := i.numbers(2)
		if err == nil {
			lengths[n[0]] = int64(n[1])
		}
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("read %s: %w", newest.path, err), newest.close())
	}
	for _, number := range slices.Backward(numbers) {
		if _, needed := lengths[number]; !needed && number != newest.number {
			continue
		}
		c := newest
		if number != newest.number {
			if c, err = l.read(number); err != nil {
				return errors.Join(err, newest.close())
			}
		}
		l.segments = append(l.segments, c.segment)
		if err := l.replay(c, lengths[number]); err != nil {
			return err
		}
		delete(lengths, number)
	}
	for number := range lengths {
		return fmt.Errorf("%w: %w: %s; %s", ErrDamaged, errMissing, l.opts.FS.PathJoin(l.opts.Dir, fileName(number)), remedy)
	}
	for m, r := range l.replicas {
		if err := r.check(m); err != nil {
			return err
		}
	}
	return l.tidy(numbers)
}

// newest returns the newest segment that was begun, which is one whose first frame is whole, and
// whether there is one.
func (l *Log) newest(numbers []uint64) (c content, begun bool, err error) {
	for _, number := range numbers {
		c, err := l.read(number)
		if err != nil {
			return c, false, err
		}
		if _, ok := readFrame(c.data, 0, c.id); ok && c.id>>randomBits == number {
			return c, true, nil
		}
		at, damaged := findSynced(c.data, 0, number, c.id)
		if err := c.close(); err != nil {
			return c, false, err
		}
		if damaged {
			return c, false, broken(c.path, 0, at)
		}
	}
	return content{}, false, nil
}

// broken is the error for a frame that had been fsynced and can't be read, as the one at witness
// shows.
func broken(path string, at, witness int64) error {
	return fmt.Errorf("%w: %s has an unreadable record at offset %d and whole records behind it, the first at %d; %s",
		ErrDamaged, path, at, witness, remedy)
}

// replay takes in what a segment says. length is that of a sealed one, and 0 for the newest, which
// ends at the first frame that can't be read.
func (l *Log) replay(c content, length int64) error {
	for length == 0 || c.end < length {
		f, ok := readFrame(c.data, c.end, c.id)
		if !ok {
			if length > 0 {
				return fmt.Errorf("%w: %s has an unreadable record at offset %d of %d; %s", ErrDamaged, c.path, c.end, length, remedy)
			}
			if at, damaged := findSynced(c.data, c.end, c.number, c.id); damaged {
				return broken(c.path, c.end, at)
			}
			return nil
		}
		seen := make(map[member]bool)
		if err := eachItem(f, func(i item) error { return l.takeIn(c.segment, i, seen) }); err != nil {
			return fmt.Errorf("read %s at offset %d: %w", c.path, c.end, err)
		}
		c.end = f.next
	}
	if c.end > length {
		return fmt.Errorf("%w: %s ends at %d instead of %d; %s", ErrDamaged, c.path, c.end, length, remedy)
	}
	return nil
}

// takeIn takes in one item of a segment. seen are the replicas that the frame's checkpoint has
// named so far.
func (l *Log) takeIn(s *segment, i item, seen map[member]bool) error {
	r := l.replicas[i.member]
	if r == nil {
		r = &replica{first: 1}
	}
	switch i.kind {
	case kindSegment:
		return nil
	case kindCheckpoint:
		for m, r := range l.replicas {
			if !seen[m] {
				r.cutBehind(0)
				delete(l.replicas, m)
			}
		}
		return nil
	case kindRemoved:
		r.cutBehind(0)
		delete(l.replicas, i.member)
		return nil
	case kindRange:
		n, err := i.numbers(2)
		if err != nil {
			return err
		}
		// What was said of the replica before may be of one that was removed since.
		r = &replica{first: r.first, entries: r.entries}
		r.narrow(n[0], n[1])
		seen[i.member] = true
	case kindBootstrap:
		r.bootstrap = &raftpb.Bootstrap{}
		if err := r.bootstrap.Unmarshal(i.body); err != nil {
			return err
		}
	case kindState:
		var state raftpb.State
		if err := state.Unmarshal(i.body); err != nil {
			return err
		}
		r.state = state
	case kindSnapshot, kindInstalled:
		var ss raftpb.Snapshot
		if err := ss.Unmarshal(i.body); err != nil {
			return err
		}
		if r.snapshot = ss; i.kind == kindInstalled {
			r.install(ss)
		}
	case kindEntries, kindCopied:
		if err := r.takeIn(s, i); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: it has items of kind %d", errNewer, i.kind)
	}
	l.replicas[i.member] = r
	return nil
}

// takeIn notes where the entries of an item are.
func (r *replica) takeIn(s *segment, i item) error {
	next := uint64(0)
	err := i.entries(func(index uint64, at int64, length uint32) {
		r.put(index, position{segment: s, at: at, length: length})
		next = index + 1
	})
	if err == nil && next > 0 && i.kind == kindEntries {
		r.cutBehind(next)
	}
	return err
}

// tidy removes the files that are not needed.
func (l *Log) tidy(numbers []uint64) error {
	if l.opts.ReadOnly {
		return nil
	}
	for _, number := range numbers {
		if slices.ContainsFunc(l.segments, func(s *segment) bool { return s.number == number }) {
			continue
		}
		path := l.opts.FS.PathJoin(l.opts.Dir, fileName(number))
		if err := l.opts.FS.Remove(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

// closeFiles closes the files of a log that can't be used.
func (l *Log) closeFiles() error {
	var err error
	for _, s := range l.segments {
		err = errors.Join(err, s.close())
	}
	return err
}
