// Package remote carries the calls that only a leader can answer to the node that
// leads: requests of a method byte and its arguments over the mesh of package peer,
// answers of a code byte and the result or a text.
//
// A call is made once. One that finds no leader, or certainly did nothing, returns
// raft.ErrNotLeader or raft.ErrNotApplied, as it does on this node; one that was lost
// returns raft.ErrNotLeader if it may be repeated, and raft.ErrTimeout if not. So does
// one that the leader gave up, and a command that failed there for a reason without a name:
// nothing counts as certainly not applied but what is named so.
//
// # Messages that grow
//
// Nodes of two versions work side by side while a cluster is upgraded. What is there keeps
// its number and its place. A new part goes behind the others: who does not know it leaves it
// alone, and who may miss it may leave it out only if the two speak a version without it (the
// handshake of package peer). A message whose last part reaches to the end, as that of a
// command, can't grow: a new method takes its place. A method that a node does not know is
// answered as malformed, and did nothing.
package remote
