// Package raftlog keeps the Raft logs of all replicas of a host in one sequence of files,
// so that one fsync makes durable what all of them wrote. It is dragonboat's log store
// (raftio.ILogDB).
//
// # Files
//
// A log is a directory of segments, files named by a number that rises. Frames are appended to
// the newest; one that is full is sealed and the next is begun. A frame is
//
//	checksum (4) | length of payload (4) | segment (8) | synced (8) | payload | zeros to a multiple of 8
//
// little-endian; the checksum, CRC-32C, covers all that follows it up to the payload's end. The
// segment is its number and 32 bits that were drawn at random when it was begun. It tells the
// frames of a segment from what is left of a file's former life, since files are used again: one
// that has its length already is synced faster. And nobody can write a value that looks like
// a frame. A payload is a sequence of items, each about one replica: item.go.
//
// # What is durable when
//
// A call that brings entries, a snapshot, or another term or vote returns when its frame is
// fsynced. One in which only the commit index moved writes its frame and does not wait for the
// disk: Raft learns that index again, and ReadRaftState returns none that is below the
// newest snapshot. That a change of a shard's members is committed is durable all the same: whose
// vote is needed hangs on it, and who was removed may be gone for ever. Calls that come while the disk is busy share the next fsync.
//
// # Torn and damaged
//
// A power cut may leave any part of what was written since the last fsync, in any order. So
// a frame that can't be read is the end of the log, unless something shows that it had
// been fsynced: a whole frame behind it whose synced, the offset up to which the segment had
// been fsynced when that frame was made, is beyond it; or that its segment is sealed. Then it
// is damage, and the log is refused: what was acknowledged would be gone. After each start a
// new segment is begun, so that nothing is ever appended behind a torn frame, where a whole
// one of before the power cut may stand.
//
// # What is kept
//
// Each segment begins with a checkpoint: which segments are needed and how long they are, and
// for each replica all that is no entry. So a segment is needed only for its entries. One
// that has few left is emptied by writing these again into the next; one without any is
// removed when that has been fsynced, or kept to be used again.
package raftlog
