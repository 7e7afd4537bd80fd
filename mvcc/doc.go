// Package mvcc is the versioned keys of one replica: current state, history,
// compaction, and the watchers that follow it. A Store answers as etcd does, to
// the field.
//
// It owns the versions of keys and nothing else. It starts no goroutine, reads
// no clock, draws no random number and knows nothing of Raft or of lease
// records: the caller applies commands in one goroutine, owns the Pebble batch
// that they write into, says which leases exist, and calls Sweep when it has
// time. It does not validate requests: empty keys, unknown enum values and
// duplicate keys in a transaction are refused before they are replicated.
//
// # How it is used
//
//	w := s.NewWriter(batch, leases)         one applied batch
//	w.Put, w.DeleteRange, w.Txn, …          see what the batch did before them
//	w.Finish(); batch.Commit(); w.Publish() then readers and watchers see it
//
//	v := s.View(); defer v.Close()          one consistent state, any goroutine
//	v.Range, v.Txn, v.RangeStream, …
//
//	g := s.NewGroup(); defer g.Close()      the watchers of one client stream
//	g.Add, <-g.Ready(), g.Poll, g.Progress
//
// A command is either applied or rejected. Rejections (see Rejected) depend on
// nothing but the state and leave no trace, so that all replicas agree. Any
// other error is a fault of storage: the Store is unusable until Reload.
//
// # Where things lie
//
// In Pebble, below the prefix that the caller gives:
//
//	k | escaped key | ^revision | ^sub  ->  create, version, lease, value | tombstone
//	h | revision | sub                  ->  key
//	h | revision | sub | n              ->  length, key, length, key …
//	m | "applied"                       ->  revision, compaction, bytes added
//	m | "swept"                         ->  swept up to, bytes removed
//
// Versions of one key lie together, newest first: the state of a key at a
// revision is one seek. History lists the changes in their order: a watcher
// catches up by reading on from where it is, and Sweep finds what a compaction
// has made superfluous without looking at anything else. Up to 128 changes that a
// command makes one after the other are one entry.
//
// In memory, one or two copy-on-write B-trees, which Publish shares with readers by
// copying their pointers:
//
//	cur     key                        ->  newest version, its value if short
//	creations  directory, create rev, key
//
// The first answers whatever concerns the newest state without a scan: a key,
// a page of keys, how many there are in a span. The second answers what locks
// ask for: the first or last created key of a directory, perhaps below some
// create revision. Keys of sub-directories lie under directories of their own
// and are merged. It is begun when somebody asks so, and then grows by a part with each
// batch; until it has all keys, such requests sort what they find in the first.
//
// # Invariants
//
// A revision is given to one command, and revisions only grow. All of a
// command's changes have its revision and a sub that counts them up; they are
// published together.
//
// compaction <= revision, and all reads at a revision from the compaction on
// are answered as if nothing had been removed. What is removed is a version
// below the compaction revision that another up to there supersedes, and a
// tombstone below it. All changes of the compaction revision itself stay, so
// that a watch from there misses nothing.
//
// Sweep never removes what an open View may read: each state belongs to the
// epoch between two compactions, readers pin their epoch, and Sweep goes only as
// far as the oldest pinned one.
//
// The size of the store is what "applied" has counted less what "swept" has
// counted. Each record has one writer and goes into the batch with the change it
// counts: a crash loses both or neither.
//
// A watcher is synced, and then offered every change in the moment in which it
// becomes visible, or it lags, and then reads history until it has caught up.
// Which of both, and the store's published state, change under one mutex: that
// is why no change falls between them and none comes twice.
package mvcc
