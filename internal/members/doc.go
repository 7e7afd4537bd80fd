// Package members makes the replicas of each shard those that the system shard's record of the members
// asks for: it adds the replicas of nodes that have joined, makes them voters when they have caught up,
// and removes those of nodes that are being removed.
//
// The leader of a shard makes its steps, one at a time, each for the members that it has looked at (raft.Members.Version).
// No plan is kept: a step follows from the record, as this node knows it, and from the members of the moment. A record that is
// old does no harm, since members go one way: they are added, then vote, then leave, and an id that was removed never returns.
//
//	step.go     which step comes next, as a pure function
//	driver.go   makes them, over and over
package members
