// Package shard is the state of a data shard: versioned keys and leases, what the
// commands in its log do to them, and what its leader sees to beside the log.
//
//	Data      a replica of a data shard; the Machine that internal/raft drives
//	Fence     which commands of users a shard takes
//	Shape     what a shard owns, and how its revisions are counted
//	Sent      a command on its way to the leader on another node
//
// The files apply_*.go are what replicas do alike: they read nothing but the state and
// the command. keeper.go, ender.go and attach.go are the leader's; sweeper.go is each
// replica's own.
//
// DESIGN.md has the decisions and what they cost.
package shard
