package lock

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// Bounds of what a request may ask.
const (
	// MaxName is the longest name of a lock in bytes.
	MaxName = 1024
	// MaxClient is the longest name of a client or of a request.
	MaxClient = 256
	// MaxMetadata is the longest that a client can have stored with its place.
	MaxMetadata = 4096
	// MaxTTL is the longest time that a lock can be asked for.
	MaxTTL = 10 * 365 * 24 * time.Hour
	// MaxDelay is the longest that a lock can be kept back after its holder was lost.
	MaxDelay = 24 * time.Hour
	// MaxWait is the longest that a call can wait for a lock.
	MaxWait = 365 * 24 * time.Hour
	// MaxOf is the most permits of a semaphore.
	MaxOf = 1 << 20
)

// Request asks for a lock.
type Request struct {
	// Name is the lock's.
	Name string
	// Client is who asks. What one client asks for the same lock is for one place: it has the
	// lock once, however often it asks, and until the last of these is released. Empty is a
	// client of this one call.
	Client string
	// ID is the request's among those of its client: the same one again, after an answer
	// that was lost, is for the same hold. Empty is like no other.
	ID string
	// Session is the lease that the lock ends with. 0 has the service grant one for this
	// lock alone, of time to live TTL, which it renews while the call waits.
	Session int64
	TTL     time.Duration
	// Wait is how long the call may wait for its turn. 0 is for not at all.
	Wait time.Duration
	// Mode is Exclusive, if empty, or Shared. Permits of Of are those of a semaphore, for
	// which it stays empty.
	Mode        Mode
	Permits, Of int
	// Delay is for how long nobody is given the lock after its holder's lease has ended
	// without a release. It is for exclusive locks without a session.
	Delay time.Duration
	// Metadata is stored with the place.
	Metadata string
	// Moved, unless it is nil, is told where the request stands while it waits, whenever that
	// has changed since it was told last. The call waits for it.
	Moved func(name string, p Position)
}

// FieldError says which field of a request is wrong.
type FieldError struct{ Field, Reason string }

// Error names the field.
func (e *FieldError) Error() string { return fmt.Sprintf("lock: %s: %s", e.Field, e.Reason) }

// check returns a FieldError unless the request can be asked.
func (r *Request) check() error {
	if err := checkNames(r.Name, r.Client); err != nil {
		return err
	}
	switch {
	case r.Session < 0:
		return &FieldError{"session_id", "is negative"}
	case r.Session == 0 && r.TTL <= 0:
		return &FieldError{"lease_time_ms", "must be above 0"}
	case r.TTL < 0 || r.TTL > MaxTTL:
		return &FieldError{"lease_time_ms", "is negative or too long"}
	case r.Wait < 0 || r.Wait > MaxWait:
		return &FieldError{"block_time_ms", "is negative or too long"}
	case r.Delay < 0 || r.Delay > MaxDelay:
		return &FieldError{"lock_delay_ms", "is negative or too long"}
	case r.Delay > 0 && (r.Session != 0 || r.Of > 0 || r.Mode == Shared):
		return &FieldError{"lock_delay_ms", "is for exclusive locks without a session"}
	case len(r.ID) > MaxClient:
		return &FieldError{"request_id", "is too long"}
	case len(r.Metadata) > MaxMetadata:
		return &FieldError{"metadata", "is too long"}
	}
	return r.checkMode()
}

func (r *Request) checkMode() error {
	switch {
	case r.Of < 0 || r.Of > MaxOf:
		return &FieldError{"of", "is negative or too large"}
	case r.Of == 0 && r.Permits != 0:
		return &FieldError{"permits", "are of a semaphore, which needs a number of them (of)"}
	case r.Of > 0 && (r.Permits < 1 || r.Permits > r.Of):
		return &FieldError{"permits", "must be from 1 to the semaphore's number of them (of)"}
	case r.Of > 0 && r.Mode != "":
		return &FieldError{"mode", "is not for a semaphore"}
	case r.Mode != "" && r.Mode != Exclusive && r.Mode != Shared:
		return &FieldError{"mode", "is neither exclusive nor shared"}
	default:
		return nil
	}
}

// checkNames judges the names that every call has.
func checkNames(name, client string) error {
	switch {
	case name == "":
		return &FieldError{"lock_key", "is empty"}
	case len(name) > MaxName:
		return &FieldError{"lock_key", "is too long"}
	case len(client) > MaxClient:
		return &FieldError{"client_id", "is too long"}
	default:
		return nil
	}
}

// seconds is a time to live as leases have it, never shorter than was asked.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// ticket is how a request stands in a queue.
type ticket struct {
	r       *Request
	prefix  string
	entry   Entry
	attempt string
	// keep are leases to renew while the request waits.
	keep []int64
	// before is the position that was told last.
	before int
	// got is the place of a request that was granted.
	got *hold
}

func (s *Service) newTicket(r *Request) *ticket {
	t := &ticket{r: r, prefix: prefixOf([]byte(r.Name)), attempt: rand.Text()}
	id := r.ID
	if id == "" {
		id = t.attempt
	}
	t.entry = Entry{
		Client: r.Client, Mode: r.Mode, Permits: r.Permits, Of: r.Of, Metadata: r.Metadata,
		Calls: []queue.Call{{ID: id, Attempt: t.attempt}}, Own: r.Session == 0, TTL: seconds(r.TTL), Delay: seconds(r.Delay), Asked: epoch(s.now()),
	}
	if r.Mode == "" && r.Of == 0 {
		t.entry.Mode = Exclusive
	}
	return t
}

// key returns the key of the request's place. It is named by a number, as leases name it for
// etcd's clients: the session, or what follows from the client, so that each finds its place
// again, or the lease that is for this one call.
func (t *ticket) key(lease int64) string {
	id := lease
	if t.r.Session == 0 && t.r.Client != "" {
		sum := sha256.Sum256([]byte(t.r.Client))
		id = int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
	}
	return t.prefix + strconv.FormatInt(id, 16)
}
