// Package fence is for resources that the holders of locks write to. It refuses a holder
// that has lost its lock without knowing.
//
// A lock is held under a lease, and a lease is time: a process that was stopped, or whose
// writes were under way for long, may write after its lock has been given to somebody else.
// No lock can prevent that; the resource can. Each grant of a lock has a token, a number
// that only grows. The holder sends it with everything that it writes, and the resource
// remembers the highest that it has seen and refuses what comes with a lower one.
//
// Guard does so in memory, Handler for HTTP, package fencegrpc for gRPC, and packages
// fencesql and fencepgx for PostgreSQL, in the transaction of the write.
package fence
