package raftlog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// position is where an entry is.
type position struct {
	segment *segment // nil: nowhere, only while a log is read
	at      int64
	length  uint32
}

// replica is what the log holds of one.
type replica struct {
	// bootstrap is nil for one that was never bootstrapped.
	bootstrap *raftpb.Bootstrap
	state     raftpb.State
	// snapshot is the newest, whose Index is 0 if there is none. It is nobody else's: dragonboat
	// counts in a snapshot who uses it.
	snapshot raftpb.Snapshot
	// first is the index of the first of entries, or of the next to come.
	first   uint64
	entries []position
}

// end is the index behind the last entry.
func (r *replica) end() uint64 { return r.first + uint64(len(r.entries)) }

// find returns where an entry is.
func (r *replica) find(index uint64) (position, bool) {
	if index < r.first || index >= r.end() {
		return position{}, false
	}
	return r.entries[index-r.first], true
}

// reach makes room for the entry with an index, and all between it and those that there are.
func (r *replica) reach(index uint64) {
	switch {
	case len(r.entries) == 0:
		r.first = index
	case index < r.first:
		r.entries = append(make([]position, r.first-index), r.entries...)
		r.first = index
	}
	for r.end() <= index {
		r.entries = append(r.entries, position{})
	}
}

// put notes where the entry with an index is.
func (r *replica) put(index uint64, p position) {
	r.reach(index)
	at := &r.entries[index-r.first]
	at.drop()
	*at = p
	p.segment.live += int64(p.length)
}

// drop tells a segment that it is no longer needed for the entry.
func (p position) drop() {
	if p.segment != nil {
		p.segment.live -= int64(p.length)
	}
}

// cutBehind drops the entries at and behind an index.
func (r *replica) cutBehind(index uint64) {
	keep := min(max(index, r.first), r.end()) - r.first
	for _, p := range r.entries[keep:] {
		p.drop()
	}
	r.entries = r.entries[:keep]
}

// cutBefore drops the entries before an index.
func (r *replica) cutBefore(index uint64) {
	n := min(max(index, r.first), r.end()) - r.first
	for _, p := range r.entries[:n] {
		p.drop()
	}
	r.entries = slices.Clone(r.entries[n:])
	r.first = max(r.first, index)
}

// narrow drops the entries before first and behind last. Of those between that are not known yet
// it notes that they are nowhere.
func (r *replica) narrow(first, last uint64) {
	r.cutBehind(last + 1)
	r.cutBefore(first)
	if last < first {
		return
	}
	r.reach(first)
	r.reach(last)
}

// install puts a snapshot in the place of all entries.
func (r *replica) install(ss raftpb.Snapshot) {
	r.cutBehind(0)
	r.first = ss.Index + 1
	r.snapshot = clone(ss)
}

// clone returns a snapshot's record without its users.
func clone(ss raftpb.Snapshot) (c raftpb.Snapshot) {
	if err := c.Unmarshal(marshal(nil, &ss)); err != nil {
		invariant.Violated("a snapshot's record can't be read: %v", err)
	}
	return c
}

// committed is the highest index that the log knows to be committed: a snapshot holds nothing
// else.
func (r *replica) committed() uint64 { return max(r.state.Commit, r.snapshot.Index) }

// errHole is a bug, or damage that no checksum shows.
var errHole = errors.New("entries are missing")

// check refuses a replica of which an entry is nowhere.
func (r *replica) check(m member) error {
	for i, p := range r.entries {
		if p.segment == nil {
			return fmt.Errorf("%w: %w: %d of %v; %s", ErrDamaged, errHole, r.first+uint64(i), m, remedy)
		}
	}
	return nil
}
