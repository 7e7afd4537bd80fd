package queue

import (
	"bytes"
	"encoding/json"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// mark begins the values that this package writes. No candidate's value begins so by chance;
// what does not, is of somebody who knows nothing of modes.
const mark = "latchkey.lock/1 "

// Mode says who may hold a lock beside a holder.
type Mode string

// The modes of a place.
const (
	// Exclusive holders are alone.
	Exclusive Mode = "exclusive"
	// Shared holders have the lock with other shared ones, while nobody else waits before
	// them.
	Shared Mode = "shared"
)

// Entry is what a place says of itself in its key's value, so that every node knows it. Its
// mode and permits never change while the key is there.
type Entry struct {
	// Client is who asked, as it calls itself; empty for who does not say, and for users of
	// etcd's calls.
	Client string `json:"client,omitempty"`
	// Mode is Exclusive or Shared. Permits of Of, if not 0, are those of a semaphore.
	Mode    Mode `json:"mode,omitempty"`
	Permits int  `json:"permits,omitempty"`
	Of      int  `json:"of,omitempty"`
	// Calls are the acquires that the place is for, all of the one client.
	Calls []Call `json:"calls,omitempty"`
	// Own says that the key's lease was granted for this place alone, and TTL for how many
	// seconds it was asked.
	Own bool  `json:"own,omitempty"`
	TTL int64 `json:"ttl,omitempty"`
	// Guard is what keeps others out for Delay seconds after the place's lease has ended; nil
	// for nothing.
	Guard *Guard `json:"guard,omitempty"`
	Delay int64  `json:"delay,omitempty"`
	// Guards says that the key is no place but the guard of one.
	Guards bool `json:"guards,omitempty"`
	// Reason is why the place was taken away by force.
	Reason string `json:"reason,omitempty"`
	// Asked is when the place was made, by the clock of the node that was asked.
	Asked Epoch `json:"asked"`
	// Metadata is the client's.
	Metadata string `json:"metadata,omitempty"`
}

// Guard is a second key of a place, made with it and just behind it in the queue, that hangs on
// a lease which lives longer. Whoever releases the place deletes both. Where the place goes
// with its lease the guard is left, and the first of the queue until its own lease ends.
type Guard struct {
	Key   string `json:"key"`
	Lease int64  `json:"lease"`
}

// Call is an acquire that a place is for.
type Call struct {
	// ID is the request's, by which the client makes it again.
	ID string `json:"id"`
	// Attempt tells the times apart that it was made. The last one counts: what an earlier
	// one gives up is not its own any more.
	Attempt string `json:"attempt"`
}

// Value returns the value of the entry's key.
func (e *Entry) Value() []byte {
	text, err := json.Marshal(e)
	if err != nil {
		return nil // strings and numbers always marshal
	}
	return append([]byte(mark), text...)
}

// EntryOf returns what a key's value says of its place. One that this package has not
// written is an exclusive place of nobody it knows.
func EntryOf(kv *mvccpb.KeyValue) Entry {
	text, ok := bytes.CutPrefix(kv.Value, []byte(mark))
	e := Entry{}
	if !ok || json.Unmarshal(text, &e) != nil {
		return Entry{Mode: Exclusive}
	}
	return e
}

// kind is what decides who may hold a lock together: those of one kind, but exclusive ones.
type kind struct {
	mode Mode
	// of is the number of permits of a semaphore, 0 for others.
	of int
}

// Epoch is a time of day as clients are told of it, in milliseconds since 1970. Nothing is
// decided by one.
type Epoch int64

func (e *Entry) kind() kind { return kind{e.Mode, e.Of} }

// Sharable reports whether the place may hold beside others.
func (e *Entry) Sharable() bool { return e.kind().together() }

// Alike reports whether two places are of one kind, and of as many permits.
func (e *Entry) Alike(o *Entry) bool { return e.kind() == o.kind() && e.Permits == o.Permits }

// together reports whether holders of the kind can be more than one.
func (k kind) together() bool { return k.mode == Shared || k.of > 0 }

// Together reports whether two places may hold beside each other, if there are permits.
func Together(a, b *mvccpb.KeyValue) bool {
	x, y := EntryOf(a), EntryOf(b)
	return x.kind() == y.kind() && x.Sharable()
}
