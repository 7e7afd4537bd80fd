// Package mvcc is the versioned keys of one replica.
package mvcc
