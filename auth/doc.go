// Package auth knows users, roles, their rights to keys, passwords and tokens, as
// etcd does.
//
//	State      all users and roles at one moment; never changes. Apply makes the next
//	Identity   who sends a request, as a token or a certificate tells
//	Tokens     makes tokens and tells whose they are: Simple or JWT
//
// State is part of the replicated state of the system shard: Apply reads no clock
// and draws nothing at random. Passwords come to it as hashes.
//
// All rules, their order and their oddities are etcd's, since clients see them.
package auth
