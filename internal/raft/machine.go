package raft

import "github.com/cockroachdb/pebble/v2"

// Machine is the state that a replica keeps and applies commands to. It lives
// in the node's Pebble below the prefix that it was opened with. All methods
// but those of its read side, which are its own, are called by one goroutine at
// a time.
//
// Applying is deterministic: it reads nothing but the state and the command.
type Machine interface {
	// Apply starts a run of commands whose changes go into b.
	Apply(b *pebble.Batch) Run
	// BeginReload is called before a snapshot takes the place of the state, and
	// Reload after it: what is in memory is replaced by what Pebble holds.
	BeginReload()
	Reload() error
}

// Run is the application of the commands that one Pebble batch covers.
type Run interface {
	// Command applies one command. The result is built only if want is true:
	// somebody waits for it. A rejected command returns the reason, changes
	// nothing and is the same on every replica. failed reports a state that
	// can't be read or written, which stops the node.
	Command(c Command, want bool) (result any, rejected, failed error)
	// Begin says that a term has begun: of earlier terms no command will come any more.
	Begin() error
	// Finish puts the last changes into the batch, before it is committed.
	Finish() error
	// Publish makes the committed changes visible to readers.
	Publish()
}

// Leadership is told when a replica begins and ceases to serve as leader. The
// calls for one replica come one after the other.
type Leadership interface {
	// Began is called before the first request of a term is served: the
	// replica's own state holds everything that earlier leaders committed.
	Began(term uint64)
	// Ended is called when the term is no longer served.
	Ended()
	// Tick is called at every tick of the host while the term is served.
	Tick()
}
