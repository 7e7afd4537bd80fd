// Clientgo is a candidate, or several, in an election of Kubernetes' client-go,
// whose lock is a key in etcd, kept as an API server keeps its objects.
//
//	clientgo -endpoint 127.0.0.1:2379 -key election -id a,b -lease 6s -renew 3s -retry 500ms
//
// A candidate runs until it has led and lost its lead, or is told to end by
// SIGTERM. What happens is printed as lines of JSON.
package main
