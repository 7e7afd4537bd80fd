package client

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/fence"
)

// DeadlockError is returned for a call that was ended because clients wait for each other; it was
// the youngest of their calls. Who gives back what it has, and asks anew for all of it, lets the
// others go on.
type DeadlockError struct {
	// Cycle are the clients in order, the caller first: each waits for a lock that the next has, or
	// stands before it for, and the last for one of the caller's.
	Cycle []Waiting
}

// Waiting is a client in a deadlock.
type Waiting struct {
	// Client is its name, Lock what it waits for. What the user of the call may not read is empty.
	Client, Lock string
	// Token is that of its place in the queue of the lock, and Waited for how long it has had it.
	Token  fence.Token
	Waited time.Duration
}

// Error tells who waits for what.
func (e *DeadlockError) Error() string {
	told := make([]string, len(e.Cycle))
	for i, w := range e.Cycle {
		next := e.Cycle[(i+1)%len(e.Cycle)]
		told[i] = fmt.Sprintf("%s waits for %s behind %s", named(w.Client, "a client"), named(w.Lock, "a lock"), named(next.Client, "a client"))
	}
	return "client: deadlock: " + strings.Join(told, ", ")
}

// named returns a name, or what stands for one that is not told.
func named(name, unknown string) string {
	if name == "" {
		return unknown
	}
	return fmt.Sprintf("%q", name)
}

// deadlockOr returns the DeadlockError that a server has told of, or else its error as it is.
func deadlockOr(err error) error {
	for _, detail := range status.Convert(err).Details() {
		d, ok := detail.(*latchkeyv1.Deadlock)
		if !ok {
			continue
		}
		e := &DeadlockError{Cycle: make([]Waiting, len(d.GetCycle()))}
		for i, w := range d.GetCycle() {
			e.Cycle[i] = Waiting{
				Client: w.GetClientId(), Lock: w.GetLockKey(), Token: fence.Token(w.GetFencingToken()),
				Waited: time.Duration(w.GetWaitedMs()) * time.Millisecond,
			}
		}
		return e
	}
	return err
}
