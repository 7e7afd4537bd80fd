// Package faults breaks clusters of real processes and holds what their clients saw
// against what was promised.
//
// A Cluster is processes that take etcd's flags, each in a network namespace of its own
// if asked for, so that links can be cut. A Nemesis suspends, kills, cuts off and
// restarts them by a seed. Workloads run meanwhile and tell violations:
//
//	Chains    no acknowledged write is lost, none applies twice, watches miss nothing
//	Registers what clients read and wrote has an order (porcupine)
//	Leases    a lease that is renewed stays, one that is not ends in time
//	LockSet   a lock with its token keeps a file whole
//
// The tests of package cluster run it for seconds, the command soak for as long as asked.
package faults
