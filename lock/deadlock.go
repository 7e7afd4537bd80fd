package lock

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// DeadlockError says that a call was ended because clients waited for each other: no lock of
// theirs would have come free. Of the calls by which they waited it was the youngest.
type DeadlockError struct {
	// Cycle are the clients, each of which waited for the next, and the last for the first, who is the
	// caller.
	Cycle []Waiting
}

// Error tells how many clients there are.
func (e *DeadlockError) Error() string {
	return fmt.Sprintf("lock: deadlock: %d clients wait for each other", len(e.Cycle))
}

// Waiting is a client that waits in a deadlock.
type Waiting struct {
	// Client is how it calls itself. It is empty where the caller may read neither the lock that it
	// waits for nor the one that it is waited for.
	Client string
	// Lock is what it waits for, Token what it would have it by, and Since when it asked for it. They
	// are empty where the caller may not read that lock.
	Lock  string
	Token int64
	Since Epoch
}

// toCaller returns an error as the caller may hear it: who can't read a lock learns from a
// deadlock neither its name nor who has to do with it.
func (s *Service) toCaller(ctx context.Context, err error) error {
	var d *DeadlockError
	if !errors.As(err, &d) {
		return err
	}
	told := make([]Waiting, len(d.Cycle))
	// The caller waits for a lock that the next has a place for, and so on.
	before := s.mayRead(ctx, d.Cycle[len(d.Cycle)-1].Lock)
	for i, w := range d.Cycle {
		reads := s.mayRead(ctx, w.Lock)
		switch {
		case reads:
			told[i] = w
		case before:
			told[i] = Waiting{Client: w.Client}
		}
		before = reads
	}
	return &DeadlockError{told}
}

// mayRead reports whether the caller is known to have the right to read a lock.
func (s *Service) mayRead(ctx context.Context, name string) bool {
	prefix := []byte(prefixOf([]byte(name)))
	_, err := s.store.Range(ctx, &pb.RangeRequest{Key: prefix, RangeEnd: keys.PrefixEnd(prefix), Limit: 1, KeysOnly: true})
	return err == nil
}
