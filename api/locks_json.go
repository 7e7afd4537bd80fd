package api

import (
	"strconv"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

// What the HTTP form of the Locks service reads and writes. Numbers are JSON numbers; a session is
// no number but a name, the lease's in hex as etcd's tools write it, since not every reader of JSON
// has numbers of 64 bits.

type acquireJSON struct {
	LockKey     string   `json:"lock_key"`
	Keys        []string `json:"keys"`
	ClientID    string   `json:"client_id"`
	RequestID   string   `json:"request_id"`
	LeaseTimeMS int64    `json:"lease_time_ms"`
	SessionID   string   `json:"session_id"`
	BlockTimeMS int64    `json:"block_time_ms"`
	Mode        string   `json:"mode"`
	Permits     int32    `json:"permits"`
	Of          int32    `json:"of"`
	LockDelayMS int64    `json:"lock_delay_ms"`
	Metadata    string   `json:"metadata"`
}

type grantJSON struct {
	LockKey          string `json:"lock_key"`
	ClientID         string `json:"client_id"`
	FencingToken     int64  `json:"fencing_token"`
	SessionID        string `json:"session_id"`
	LeaseTimeMS      int64  `json:"lease_time_ms"`
	ExpiresAtEpochMS int64  `json:"expires_at_epoch_ms"`
	Holds            int32  `json:"holds"`
}

// acquiredJSON answers an acquire of one lock, whose grant it has, or of several.
type acquiredJSON struct {
	Acquired bool `json:"acquired"`
	*grantJSON
	Grants   []grantJSON `json:"grants,omitempty"`
	Revision int64       `json:"revision"`
}

// notAcquiredJSON answers an acquire that has waited in vain.
type notAcquiredJSON struct {
	Acquired bool        `json:"acquired"`
	LockKey  string      `json:"lock_key"`
	ClientID string      `json:"client_id"`
	Position int32       `json:"position"`
	Holders  []placeJSON `json:"holders"`
	Revision int64       `json:"revision"`
}

type placeJSON struct {
	ClientID     string `json:"client_id"`
	FencingToken int64  `json:"fencing_token"`
	SessionID    string `json:"session_id"`
	Mode         string `json:"mode,omitempty"`
	Permits      int32  `json:"permits,omitempty"`
	Of           int32  `json:"of,omitempty"`
	Holds        int32  `json:"holds"`
	SinceEpochMS int64  `json:"since_epoch_ms"`
	WaitedMS     int64  `json:"waited_ms"`
	RemainingMS  *int64 `json:"remaining_ms,omitempty"`
	Metadata     string `json:"metadata,omitempty"`
	Key          string `json:"key"`
}

type renewJSON struct {
	LockKey      string `json:"lock_key"`
	ClientID     string `json:"client_id"`
	FencingToken int64  `json:"fencing_token"`
	ExtendTimeMS *int64 `json:"extend_time_ms"`
}

type renewedJSON struct {
	Renewed      bool  `json:"renewed"`
	LeaseTimeMS  int64 `json:"lease_time_ms"`
	NewExpiresAt int64 `json:"new_expires_at"`
}

type releaseJSON struct {
	LockKey      string `json:"lock_key"`
	ClientID     string `json:"client_id"`
	FencingToken int64  `json:"fencing_token"`
	RequestID    string `json:"request_id"`
}

type releasedJSON struct {
	Released bool `json:"released"`
}

type validateJSON struct {
	LockKey      string `json:"lock_key"`
	FencingToken int64  `json:"fencing_token"`
}

type validatedJSON struct {
	Valid   bool        `json:"valid"`
	Holders []placeJSON `json:"holders"`
}

type forceReleaseJSON struct {
	LockKey      string `json:"lock_key"`
	FencingToken int64  `json:"fencing_token"`
	Reason       string `json:"reason"`
}

type lockJSON struct {
	LockKey   string      `json:"lock_key"`
	Holders   []placeJSON `json:"holders"`
	Waiters   []placeJSON `json:"waiters"`
	DelayedMS int64       `json:"delayed_ms,omitempty"`
	Revision  int64       `json:"revision"`
}

type listJSON struct {
	Locks    []listedJSON `json:"locks"`
	Cursor   string       `json:"cursor,omitempty"`
	Revision int64        `json:"revision"`
}

type listedJSON struct {
	LockKey string      `json:"lock_key"`
	Holders []placeJSON `json:"holders"`
	Waiters int32       `json:"waiters"`
}

// eventJSON is the data of an event.
type eventJSON struct {
	Event    string `json:"event"`
	LockKey  string `json:"lock_key"`
	Revision int64  `json:"revision"`
	placeJSON
	Reason string `json:"reason,omitempty"`
}

type openSessionJSON struct {
	ClientID string `json:"client_id"`
	TTLMS    int64  `json:"ttl_ms"`
}

type sessionIDJSON struct {
	SessionID string `json:"session_id"`
}

type sessionJSON struct {
	SessionID        string `json:"session_id"`
	ClientID         string `json:"client_id,omitempty"`
	TTLMS            int64  `json:"ttl_ms"`
	ExpiresAtEpochMS int64  `json:"expires_at_epoch_ms"`
}

type closedJSON struct {
	Closed bool `json:"closed"`
}

// errorJSON answers what fails. Field is the field of the request that can't be, Deadlock the clients
// that wait for each other.
type errorJSON struct {
	Error    string        `json:"error"`
	Field    string        `json:"field,omitempty"`
	Deadlock []waitingJSON `json:"deadlock,omitempty"`
}

// waitingJSON is a client in a deadlock. What the caller may not read is left out.
type waitingJSON struct {
	ClientID     string `json:"client_id,omitempty"`
	LockKey      string `json:"lock_key,omitempty"`
	FencingToken int64  `json:"fencing_token,omitempty"`
	SinceEpochMS int64  `json:"since_epoch_ms,omitempty"`
	WaitedMS     *int64 `json:"waited_ms,omitempty"`
}

func (r *acquireJSON) message() (*latchkeyv1.AcquireRequest, error) {
	m := &latchkeyv1.AcquireRequest{
		LockKey: r.LockKey, Keys: r.Keys, ClientId: r.ClientID, RequestId: r.RequestID, LeaseTimeMs: r.LeaseTimeMS,
		BlockTimeMs: r.BlockTimeMS, Permits: r.Permits, Of: r.Of, LockDelayMs: r.LockDelayMS, Metadata: r.Metadata,
	}
	var ok bool
	if m.Mode, ok = modes[lock.Mode(r.Mode)]; !ok {
		return nil, errMode
	}
	if r.SessionID != "" {
		var err error
		if m.SessionId, err = sessionID(r.SessionID); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// sessionID returns the number of a session, which is never 0.
func sessionID(name string) (int64, error) {
	id, err := strconv.ParseInt(name, 16, 64)
	if err != nil || id <= 0 {
		return 0, &lock.FieldError{Field: "session_id", Reason: "is none"}
	}
	return id, nil
}

func sessionName(id int64) string { return strconv.FormatInt(id, 16) }

func grantOf(g *latchkeyv1.Grant) grantJSON {
	return grantJSON{
		LockKey: g.GetLockKey(), ClientID: g.GetClientId(), FencingToken: g.GetFencingToken(), SessionID: sessionName(g.GetSessionId()),
		LeaseTimeMS: g.GetLeaseTimeMs(), ExpiresAtEpochMS: g.GetExpiresAtEpochMs(), Holds: g.GetHolds(),
	}
}

func placeJSONOf(p *latchkeyv1.Place) placeJSON {
	return placeJSON{
		ClientID: p.GetClientId(), FencingToken: p.GetFencingToken(), SessionID: sessionName(p.GetSessionId()),
		Mode: string(modeNames[p.GetMode()]), Permits: p.GetPermits(), Of: p.GetOf(), Holds: p.GetHolds(), SinceEpochMS: p.GetSinceEpochMs(),
		WaitedMS: p.GetWaitedMs(), Metadata: p.GetMetadata(), Key: utf8Text(string(p.GetKey())),
	}
}

func placesJSONOf(places []*latchkeyv1.Place) []placeJSON {
	all := make([]placeJSON, len(places))
	for i, p := range places {
		all[i] = placeJSONOf(p)
	}
	return all
}

func deadlockJSONOf(d *latchkeyv1.Deadlock) (cycle []waitingJSON) {
	for _, w := range d.GetCycle() {
		told := waitingJSON{
			ClientID: w.GetClientId(), LockKey: w.GetLockKey(), FencingToken: w.GetFencingToken(), SinceEpochMS: w.GetSinceEpochMs(),
		}
		if told.LockKey != "" {
			told.WaitedMS = &w.WaitedMs
		}
		cycle = append(cycle, told)
	}
	return cycle
}

func sessionJSONOf(s *latchkeyv1.Session) *sessionJSON {
	return &sessionJSON{SessionID: sessionName(s.GetSessionId()), TTLMS: s.GetTtlMs(), ExpiresAtEpochMS: s.GetExpiresAtEpochMs()}
}
