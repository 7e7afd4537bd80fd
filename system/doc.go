// Package system keeps what all nodes must agree on and no data shard owns: who the
// nodes are, which shards there are and where their replicas live, the map from
// positions to shards, the order of revisions, the alarms, and the users with their
// roles.
//
// All of it is the replicated state of the system shard. Every node holds a
// replica of it and publishes each new state as an immutable value, so that readers
// take no lock:
//
//	Machine   the state machine of the system shard: commands in, State out
//	State     one published state; never changes
//	Cluster   this node's view of it, and the calls that change it
//	Leader    what only the leader of the system shard answers, wherever it is
package system
