package lock

import "github.com/latchkey-db/latchkey/lock/queue"

// What a place says of itself, by the names that callers of this package know.
type (
	// Mode is queue.Mode.
	Mode = queue.Mode
	// Entry is queue.Entry.
	Entry = queue.Entry
	// Epoch is queue.Epoch.
	Epoch = queue.Epoch
)

// The modes of a place.
const (
	Exclusive = queue.Exclusive
	Shared    = queue.Shared
)
