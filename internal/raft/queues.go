package raft

import _ "unsafe" // for go:linkname

// A replica of dragonboat has two arrays for each kind of what waits for its next step, of the first three
// lengths here. With its own 2,048, 4,096 and 1,024 they take 0.8 MiB more of each replica, full of pointers that
// each garbage collection follows. dragonboat reads other values from a file in the working directory only.

// incomingProposalsMaxLen is for proposals. A leader has maxFlight under way, beside those that it
// has given up while the step waited for the disk. One too many is refused, and a call made again.
//
//go:linkname incomingProposalsMaxLen github.com/lni/dragonboat/v4.incomingProposalsMaxLen
var incomingProposalsMaxLen uint64

// incomingReadIndexMaxLen is for reads of confirmations, maxReads of each. One too many is refused, and the
// confirmation made again.
//
//go:linkname incomingReadIndexMaxLen github.com/lni/dragonboat/v4.incomingReadIndexMaxLen
var incomingReadIndexMaxLen uint64

// receiveQueueLen is for messages of other replicas: those of a tenth of a second under load. One too many is
// dropped, as the network may do.
//
//go:linkname receiveQueueLen github.com/lni/dragonboat/v4.receiveQueueLen
var receiveQueueLen uint64

// pendingProposalShards is the number of parts that what is known of proposals under way is divided into, so that
// many goroutines may propose at once. Each part of dragonboat's own 16 takes 5 KiB, and is looked at with
// each tick.
//
//go:linkname pendingProposalShards github.com/lni/dragonboat/v4.pendingProposalShards
var pendingProposalShards uint64

func init() {
	incomingProposalsMaxLen = 64
	incomingReadIndexMaxLen = 64
	receiveQueueLen = 256
	pendingProposalShards = 1
}
