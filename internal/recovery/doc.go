// Package recovery makes a backup of what is left of a cluster whose majority is lost for good: of data
// directories of nodes that do not run, which together have a replica of each shard. A new cluster is restored
// from it.
//
// Of each shard the replica with the newest log is taken, as Raft would elect it, and all of its log is applied
// (internal/raft/offline.go). Transactions over several shards and leases are brought to an end
// (shard/offline.go). With a majority of a shard's replicas nothing is missing that was acknowledged. With fewer, writes may be
// missing, and of each shard others: it is then of an earlier moment than another.
//
// The directories are not changed: states are worked on in copies, whose large files are links where the file system can have
// them, and logs are read as they are.
package recovery
