package raft

import _ "unsafe" // for go:linkname

// dragonboat keeps what a replica has not applied yet in a slice, and makes a new one of
// entrySliceSize entries (80 bytes each) whenever one entry or none is left, or room for less than
// minEntrySliceSize. With its own 512 and 96 that is 40 KiB to allocate and to clear for nearly each entry of
// a replica that is not busy: three quarters of all bytes that a node allocates then. A slice
// that is too small grows. dragonboat reads other values from a file in the working directory only.
//
//go:linkname entrySliceSize github.com/lni/dragonboat/v4/internal/raft.entrySliceSize
var entrySliceSize uint64

// minEntrySliceSize has to be below entrySliceSize.
//
//go:linkname minEntrySliceSize github.com/lni/dragonboat/v4/internal/raft.minEntrySliceSize
var minEntrySliceSize uint64

func init() {
	entrySliceSize = 16
	minEntrySliceSize = 4
}
