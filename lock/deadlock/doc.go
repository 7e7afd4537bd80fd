// Package deadlock finds out which clients wait for each other, so that none of them gets
// what it waits for. It is pure: what it is told is what it knows.
//
// A client is taken for one thread of work: while it waits, and until one of its waits ends, it
// releases nothing. So a place in a queue stays for ever if its client waits and none of its waits can
// end. A wait can't end while a place that must go before it stays, or while the places of its
// semaphore that stay leave too few permits. All that is not known to stay may go: it is better to
// find a deadlock late than one that is none.
//
// Nobody waits for himself: the other place that a client has in the queue may be what its former
// life has left, which ends with its lease. For the same reason a client's wait for a lock says
// nothing of another place that it has in the same queue. So a deadlock takes two clients and two locks.
package deadlock
