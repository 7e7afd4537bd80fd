// Package lock is how clients take turns: locks and elections, as queues of keys.
//
// A name's queue is what it is for etcd's clients: the keys under NAME/, each named by a
// lease and attached to it, in the order in which they were created. The first has the lock.
// So etcd's own recipes, its Lock and Election calls and the calls of this package stand in
// one line.
//
// What differs from the recipes is who waits: here the node that was asked does. It follows
// the keys of a queue while somebody waits in it, once for all who do, and wakes exactly the
// one whose turn it is.
//
// DESIGN.md says why a grant is right.
package lock
