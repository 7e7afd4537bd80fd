// Package e2e holds Latchkey against what it must equal or survive: a real etcd
// in the same process, faults, histories and models. It consists of tests.
package e2e
