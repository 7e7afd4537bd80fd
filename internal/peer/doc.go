// Package peer carries bytes between the nodes of a cluster: calls with their answers,
// and the frames of Raft hosts. It knows neither shards nor Raft.
//
// Everything travels on streams, each over a connection of its own, so that none holds up
// another. A stream carries messages (stream.go), of:
//
//	calls      one stream from each node to each other; many calls and answers a message, and
//	           answers that nobody waits for (Config.Unhurried) with others
//	messages   frames of one Raft host to another, unanswered
//	snapshot   parts of a snapshot, each acknowledged before the next
//
// A connection begins with a handshake (handshake.go): each side proves
// that it knows the cluster's secret, in messages of 16 KiB at most, within three of Config.Timeout, and
// no more than 128 such connections wait at a time. Then the caller says which cluster it
// belongs to, which data directory it has and what the stream is for; the other side admits it
// or says why not, and who it is itself, which the caller judges by the same rule. Until both
// are done nothing is kept or counted of the other node.
//
// Each side says something eight times in Config.Timeout. A caller that hears nothing for the
// whole of it takes the stream for broken, the side that was called after twice as long. Pings on the stream of
// calls measure how long the other side takes to answer. A broken stream never
// sends anything twice: its calls end with ErrLost where their bytes were handed to it.
package peer
