// Package api serves etcd's v3 API: the gRPC services KV, Watch, Lease,
// Cluster, Maintenance, Auth, Lock and Election, gRPC health, and the plain HTTP
// end points on the same port.
//
// The package knows etcd's rules about requests and answers, and nothing of how
// the keyspace is kept. What it needs from below it declares as interfaces in
// backend.go; their implementations come in through Config.
//
// # The way of a request
//
// Every call passes, in this order:
//
//  1. the interceptors: recovery from panics, metrics, the log of failures,
//     metadata (client-api-version, hasleader), and for streams the registration
//     that lets Stop end them;
//  2. the gate (gate.go): who calls, and whether the call is open to them; what keys they
//     may use the layer below judges, with the state that it reads or changes;
//  3. admission (quota.go): a write that would exceed the quota raises the
//     NOSPACE alarm and is refused, before anything else is looked at;
//  4. validation (validate.go): what can be judged from the request alone, in
//     the order in which etcd judges it, ending with the size it would have in
//     etcd's log;
//  5. the alarms that are raised: CORRUPT refuses every write, NOSPACE those
//     that make the store grow;
//  6. the layer below, unless the caller's context has ended meanwhile.
//
// The answer's header gets cluster, member and term (header.go). An error
// becomes the status that etcd would send (errors.go), and nowhere else is a
// status made.
//
// # Lock and Election
//
// These are etcd's own services, over clients that call the other services of this
// server in the process (caller.go). Each call has a client of its own under the
// call's context, and so the caller's rights. The client sees the key that the
// call competes with: it answers with the key's create revision as the fencing
// token, and ends the call when the key is deleted while it waits.
//
// # HTTP
//
// A connection that does not speak HTTP/2 from the start belongs to net/http. The
// JSON API under /v3 is etcd's generated gateway: it calls the services over one
// connection in the process, to a gRPC server of its own (Server.inner), on which
// the bound on the calls of a connection does not hold: there it would bound all
// clients of the gateway together. A body is bounded, and the first message of a
// stream is read before the stream is opened, so that an unreadable one is
// answered. access.go is what every request passes before.
//
// # TLS
//
// Over TLS the protocols offered in the handshake tell the clients apart. One that
// offers nothing but HTTP/2 is most often gRPC's: its first request is read
// (sniff.go), and a call goes to the same gRPC server as without TLS. All others
// are net/http's, which passes gRPC calls on to Server.inner.
//
// # Streams
//
// A stream's handler goroutine is its only sender. One goroutine more reads the
// client's requests, because gRPC ends a blocked read only when the handler has
// returned; Server.Stop waits for these readers. A LeaseKeepAlive stream has
// beside them a few workers, which its handler starts and waits for.
//
// A watch stream does everything in its handler: it registers and removes
// watchers, polls their batches and sends. So an answer to a create request is
// sent before any event of that watcher, and a progress answer after every
// event up to its revision, by the order of statements alone. Where the client
// does not read, gRPC's flow control holds the handler, and the watchers fall
// back to reading history when it goes on.
package api
