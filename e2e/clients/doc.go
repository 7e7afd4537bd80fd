// Package clients has programs that were written for etcd do their work on Latchkey: the
// packages of its Go client, etcdctl, Kubernetes, Patroni, clients of other languages, and
// what the README shows. It consists of tests.
package clients
