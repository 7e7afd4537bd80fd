// Package router takes requests to the shards that own their keys and leases.
//
// It knows the map (which span belongs to which shard) and the shards with a
// replica on this node; it bounds the time of a call, sends a command again
// while it certainly has not applied, and puts the answers together:
//
//	key, lease -> position -> piece of the map -> shard -> its leader
//
// A linearizable read is a confirmation at the shard's leader, then the newest
// state there; a serializable one is the newest state of this node.
package router
