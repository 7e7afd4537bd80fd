// Package placement keeps what all nodes must agree on and no data shard owns:
// who the nodes are, which shards there are and where their replicas live, the
// map from positions to shards, the alarms, and the users with their roles.
//
// All of it is the replicated state of the system shard. Every node holds a
// replica of it (or follows one) and publishes each new state as an immutable
// value, so that readers take no lock:
//
//	Machine   the state machine of the system shard: commands in, State out
//	State     one published state; never changes
//	Map       the part of it that says which shard owns which positions
//	Cluster   this node's view of it, and the calls that change it
//
// A position is a place in the keyspace as placement divides it: first the lease
// section, then the users' keys (see keys.Position and keys.LeasePosition).
package placement
