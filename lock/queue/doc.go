// Package queue is who stands in the queue of a lock, and who of them has it, by its keys
// alone: servers and clients count alike. It is pure.
package queue
