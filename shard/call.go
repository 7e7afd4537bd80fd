package shard

import "sync/atomic"

// outcome is what becomes of a command.
type outcome struct {
	result any
	err    error
}

// call is one command on its way, and whoever waits for it.
//
// A call is in exactly one place at a time: the leader's queue, one unsettled
// batch, or settled. It is settled once.
type call struct {
	kind Kind
	// payload is the command's payload, or nil if fill makes it when the command
	// leaves the queue.
	payload []byte
	// fill makes the payload at the moment the command leaves the queue; false
	// says that there is nothing left to do. The leader's mutex is not held.
	fill func() ([]byte, bool)
	// settled receives the outcome. It is called once, with no lock of the replica
	// but leadMu and machineMu held, and must not block.
	settled func(outcome)
	// abandoned is set when nobody waits any more. A command that is still in
	// the queue is then dropped.
	abandoned atomic.Bool
}

// batch is a Raft entry on its way.
type batch struct {
	term   uint64
	number uint64
	calls  []*call
}

// settle gives every call of the batch the same error.
func (b *batch) settle(err error) {
	for _, c := range b.calls {
		c.settled(outcome{err: err})
	}
	b.calls = nil
}
