// Package differential holds Latchkey against a real etcd in the same process: answers,
// errors, metrics, and the way from one to the other. It consists of tests.
package differential
