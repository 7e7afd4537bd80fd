// Package placement says which shard owns which part of the keyspace, and who should
// lead it: types and pure functions over them. What holds is kept by the system shard
// (package system); nothing here reads, writes or waits.
//
//	Map           which shard owns which positions
//	FirstMap      the map of a new cluster
//	NextHandover  the leadership that a node should give away
//
// A position is a place in the keyspace as placement divides it: first the lease
// section, then the users' keys (see keys.Position and keys.LeasePosition).
package placement
