// Package router takes requests to the shards that own their keys and leases.
//
// It knows the map (which span belongs to which shard) and the shards with a
// replica on this node; it bounds the time of a call, sends a command again
// while it certainly has not applied, and puts the answers together:
//
//	key, lease -> position -> piece of the map -> shard -> its leader
//
// A linearizable read has the shard's leader, on whichever node, prove that nothing is
// missing up to an index of its log; then this node's own replica is read, once it has
// applied that index. A serializable read is what this node knows.
package router
