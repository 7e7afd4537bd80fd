package api

import (
	"strings"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

// modes are the modes of package lock as messages have them; none is that of a semaphore, or
// of who does not say.
var modes = map[lock.Mode]latchkeyv1.Mode{
	"":             latchkeyv1.Mode_MODE_UNSPECIFIED,
	lock.Exclusive: latchkeyv1.Mode_EXCLUSIVE,
	lock.Shared:    latchkeyv1.Mode_SHARED,
}

// eventKinds are the kinds of events of package lock as messages have them.
var eventKinds = map[lock.EventKind]latchkeyv1.LockEvent_Kind{
	lock.Queued:   latchkeyv1.LockEvent_QUEUED,
	lock.Granted:  latchkeyv1.LockEvent_GRANTED,
	lock.Released: latchkeyv1.LockEvent_RELEASED,
	lock.Expired:  latchkeyv1.LockEvent_EXPIRED,
	lock.Ended:    latchkeyv1.LockEvent_ENDED,
	lock.Left:     latchkeyv1.LockEvent_LEFT,
}

// modeNames and eventNames are the same the other way round.
var (
	modeNames  = inverse(modes)
	eventNames = inverse(eventKinds)
)

func inverse[Name, Number comparable](numbers map[Name]Number) map[Number]Name {
	names := make(map[Number]Name, len(numbers))
	for name, number := range numbers {
		names[number] = name
	}
	return names
}

// errMode says that a mode is not known.
var errMode = &lock.FieldError{Field: "mode", Reason: "is neither exclusive nor shared"}

func grantMessage(g *lock.Grant) *latchkeyv1.Grant {
	return &latchkeyv1.Grant{
		LockKey: g.Name, ClientId: g.Client, FencingToken: g.Token, SessionId: g.Lease, LeaseTimeMs: g.TTL.Milliseconds(),
		ExpiresAtEpochMs: int64(g.Expires), Holds: int32(g.Holds),
	}
}

func sessionMessage(session *lock.Session, err error) (*latchkeyv1.Session, error) {
	if err != nil {
		return nil, err
	}
	return &latchkeyv1.Session{
		SessionId: session.ID, TtlMs: session.TTL.Milliseconds(), ExpiresAtEpochMs: int64(session.Expires),
	}, nil
}

func (s *locksService) places(standings []lock.Standing) []*latchkeyv1.Place {
	messages := make([]*latchkeyv1.Place, len(standings))
	for i := range standings {
		messages[i] = s.place(&standings[i].Place, &standings[i].Entry)
	}
	return messages
}

func (s *locksService) place(p *lock.Place, e *lock.Entry) *latchkeyv1.Place {
	return &latchkeyv1.Place{
		ClientId: e.Client, FencingToken: p.Token, SessionId: p.Lease, Mode: modes[e.Mode],
		Permits: int32(e.Permits), Of: int32(e.Of), Holds: int32(len(e.Calls)),
		SinceEpochMs: int64(e.Asked), Metadata: e.Metadata, Key: []byte(p.Key),
		WaitedMs: s.locks.Age(e.Asked).Milliseconds(),
	}
}

func (s *locksService) deadlock(d *lock.DeadlockError) *latchkeyv1.Deadlock {
	m := &latchkeyv1.Deadlock{Cycle: make([]*latchkeyv1.WaitingClient, len(d.Cycle))}
	for i, w := range d.Cycle {
		m.Cycle[i] = &latchkeyv1.WaitingClient{
			ClientId: utf8Text(w.Client), LockKey: utf8Text(w.Lock), FencingToken: w.Token,
			SinceEpochMs: int64(w.Since), WaitedMs: s.locks.Age(w.Since).Milliseconds(),
		}
	}
	return m
}

// utf8Text returns a name or a key as text, which messages and JSON can hold.
func utf8Text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
