package raftlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// sparse is the part of a segment's length that its entries must have for it to stay: those of
// an emptier one are written again.
const sparse = 8

// errClosed is returned by a log that was closed.
var errClosed = errors.New("the Raft log is closed")

// roll seals the last segment and begins the next. l.io must be held. Nobody else reads or
// writes the log meanwhile.
func (l *Log) roll() error {
	l.reading.Lock()
	defer l.reading.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = l.rollLocked()
	}
	return l.err
}

func (l *Log) rollLocked() error {
	for _, s := range l.segments {
		if s.file == nil {
			continue
		}
		if err := l.sealLocked(s); err != nil {
			return fmt.Errorf("write %s: %w", s.path, err)
		}
	}
	l.number++
	next, err := l.opts.create(l.number, l.spare)
	if err != nil {
		return fmt.Errorf("make log file %d in %s: %w", l.number, l.opts.Dir, err)
	}
	l.spare = ""
	var kept, dropped []*segment
	emptied := make(map[*segment]bool)
	for _, s := range l.segments {
		if s.live > l.opts.SegmentBytes/sparse {
			kept = append(kept, s)
			continue
		}
		dropped = append(dropped, s)
		emptied[s] = true
	}
	if err := l.checkpoint(next, kept, emptied); err != nil {
		return fmt.Errorf("write %s: %w", next.path, errors.Join(err, next.close()))
	}
	l.segments = append(kept, next)
	return l.remove(dropped)
}

// sealLocked writes and fsyncs what a segment still lacks, and closes it for writing.
func (l *Log) sealLocked(s *segment) error {
	_, b, at, upto := l.take()
	if len(b) > 0 {
		if err := s.write(b, at); err != nil {
			return err
		}
	}
	if s.synced < s.end {
		if err := syncData(s.file); err != nil {
			return err
		}
	}
	s.synced = s.end
	l.written, l.synced = upto, upto
	return s.seal()
}

// checkpoint begins a segment: what is needed of the others, all of the replicas that is no
// entry, and the entries of the segments that are to be emptied. It is one frame, so that either
// all of it counts or nothing.
func (l *Log) checkpoint(next *segment, kept []*segment, emptied map[*segment]bool) error {
	b := beginFrame(nil)
	for _, s := range kept {
		b = appendNumbers(b, kindSegment, member{}, s.number, uint64(s.end))
	}
	members := l.members()
	for _, m := range members {
		r := l.replicas[m]
		b = appendNumbers(b, kindRange, m, r.first, r.end()-1)
		if r.bootstrap != nil {
			b = appendMessage(b, kindBootstrap, m, r.bootstrap)
		}
		b = appendMessage(b, kindState, m, &r.state)
		if r.snapshot.Index > 0 {
			b = appendMessage(b, kindSnapshot, m, &r.snapshot)
		}
	}
	b = appendNumbers(b, kindCheckpoint, member{})
	for _, m := range members {
		var err error
		if b, err = l.copyEntries(b, m, next, emptied); err != nil {
			return err
		}
	}
	b = endFrame(b, 0, next.id, 0)
	if err := next.write(b, 0); err != nil {
		return err
	}
	if err := syncData(next.file); err != nil {
		return err
	}
	next.end, next.synced = int64(len(b)), int64(len(b))
	return SyncDir(l.opts.FS, l.opts.Dir)
}

// copyEntries appends items with a replica's entries of the segments that are to be emptied.
func (l *Log) copyEntries(b []byte, m member, next *segment, emptied map[*segment]bool) ([]byte, error) {
	r := l.replicas[m]
	start, follows := 0, false
	for i, p := range r.entries {
		if !emptied[p.segment] {
			follows = false
			continue
		}
		if !follows {
			start = len(b)
			b = binary.LittleEndian.AppendUint64(beginItem(b, kindCopied, m), r.first+uint64(i))
			follows = true
		}
		at := len(b)
		b = append(b, make([]byte, p.length)...)
		if err := p.segment.read(b[at:], p.at); err != nil {
			return nil, err
		}
		b = endItem(b, start)
		r.put(r.first+uint64(i), position{segment: next, at: int64(at), length: p.length})
	}
	return b, nil
}

// remove removes the files of segments that are no longer needed, or keeps one to be used
// again.
func (l *Log) remove(dropped []*segment) error {
	for _, s := range dropped {
		if err := s.close(); err != nil {
			return fmt.Errorf("close %s: %w", s.path, err)
		}
		if l.spare == "" && s.filled >= l.opts.SegmentBytes {
			l.spare = s.path
			continue
		}
		if err := l.opts.FS.Remove(s.path); err != nil {
			return fmt.Errorf("remove %s: %w", s.path, err)
		}
	}
	return nil
}

// members returns the replicas in a fixed order. l.mu must be held.
func (l *Log) members() []member {
	return slices.SortedFunc(maps.Keys(l.replicas), func(a, b member) int {
		return cmp.Or(cmp.Compare(a.shardID, b.shardID), cmp.Compare(a.replicaID, b.replicaID))
	})
}
