// Package cases holds what went wrong for users of etcd and of other stores, as small
// reproductions, and the table of all of them, CASES.md. It consists of tests.
package cases
