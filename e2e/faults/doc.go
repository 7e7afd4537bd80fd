// Package faults breaks clusters of real processes and holds what their clients saw
// against what was promised.
//
// A Cluster is processes that take etcd's flags. Gear is what the machine gives them for
// faults: a network namespace each, so that links can be cut and lose packets, and a file
// system each, which can be stuck and full, and whose fsyncs can be slow and fail. Choose
// says which faults the machine allows. A Nemesis has them befall the nodes by a seed.
// Workloads run meanwhile and tell violations:
//
//	Chains    no acknowledged write is lost, none applies twice, watches miss nothing
//	Registers what clients read and wrote has an order (porcupine)
//	Leases    a lease that is renewed stays, one that is not ends in time
//	LockSet   a lock with its token keeps a file whole
//	Transfers, MultiRegisters, Groups
//	          transactions over several shards have one revision, all of it is seen or none
//
// The tests of package cluster run it for seconds, the command soak for as long as asked.
package faults
