// Package sim runs whole clusters in one process, in fake time, and breaks them. It
// has tests alone.
//
// A cluster is nodes made of the real parts: the hosts of Raft on file systems that
// lose what was not synced, the system shard with its oracle, data shards with a
// replica on each node, and a router. Between the nodes lies a network that delays,
// loses, repeats and reorders Raft's messages, and that loses calls, or answers to
// calls that were carried out.
//
//	network_test.go   Raft's messages on their way
//	wire_test.go      calls between nodes: leaders, the oracle
//	node_test.go      one node: its start, its death, what is left of it
//	cluster_test.go   all nodes, and what can be done to them
//	truth_test.go     the whole history of events, and what it says of each moment
//	checks_test.go    what answers, watches and leases are held against
//
// Tests that begin with a seed print it; LATCHKEY_SIM_SEED replays the choices of one.
// How goroutines take turns is not part of the seed.
package sim
