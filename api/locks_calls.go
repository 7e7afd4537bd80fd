package api

import (
	"context"
	"net/http"
	"strconv"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

func (a *locksAPI) acquire(ctx context.Context, r *acquireJSON) (int, any, error) {
	m, err := r.message()
	if err != nil {
		return 0, nil, err
	}
	resp, err := a.calls.Acquire(ctx, m)
	switch {
	case err != nil:
		return 0, nil, err
	case !resp.GetAcquired():
		return http.StatusConflict, notAcquiredJSON{
			LockKey: resp.GetLockKey(), ClientID: r.ClientID, Position: resp.GetPosition(),
			Holders: placesJSONOf(resp.GetHolders()), Revision: resp.GetRevision(),
		}, nil
	}
	answer := acquiredJSON{Acquired: true, Revision: resp.GetRevision()}
	if len(r.Keys) == 0 {
		g := grantOf(resp.GetGrants()[0])
		answer.grantJSON = &g
		return http.StatusOK, answer, nil
	}
	for _, g := range resp.GetGrants() {
		answer.Grants = append(answer.Grants, grantOf(g))
	}
	return http.StatusOK, answer, nil
}

func (a *locksAPI) renew(ctx context.Context, r *renewJSON) (int, any, error) {
	m := &latchkeyv1.RenewRequest{LockKey: r.LockKey, ClientId: r.ClientID, FencingToken: r.FencingToken}
	if r.ExtendTimeMS != nil {
		if m.ExtendTimeMs = *r.ExtendTimeMS; m.ExtendTimeMs == 0 {
			return 0, nil, &lock.FieldError{Field: "extend_time_ms", Reason: "must be above 0"}
		}
	}
	resp, err := a.calls.Renew(ctx, m)
	return http.StatusOK, renewedJSON{
		Renewed: true, LeaseTimeMS: resp.GetLeaseTimeMs(), NewExpiresAt: resp.GetNewExpiresAtEpochMs(),
	}, err
}

func (a *locksAPI) release(ctx context.Context, r *releaseJSON) (int, any, error) {
	_, err := a.calls.Release(ctx, &latchkeyv1.ReleaseRequest{
		LockKey: r.LockKey, ClientId: r.ClientID, FencingToken: r.FencingToken, RequestId: r.RequestID,
	})
	return http.StatusOK, releasedJSON{Released: true}, err
}

func (a *locksAPI) validate(ctx context.Context, r *validateJSON) (int, any, error) {
	resp, err := a.calls.Validate(ctx, &latchkeyv1.ValidateRequest{LockKey: r.LockKey, FencingToken: r.FencingToken})
	return http.StatusOK, validatedJSON{Valid: resp.GetValid(), Holders: placesJSONOf(resp.GetHolders())}, err
}

func (a *locksAPI) forceRelease(ctx context.Context, r *forceReleaseJSON) (int, any, error) {
	_, err := a.calls.ForceRelease(ctx, &latchkeyv1.ForceReleaseRequest{
		LockKey: r.LockKey, FencingToken: r.FencingToken, Reason: r.Reason,
	})
	return http.StatusOK, releasedJSON{Released: true}, err
}

func (a *locksAPI) openSession(ctx context.Context, r *openSessionJSON) (int, any, error) {
	resp, err := a.calls.OpenSession(ctx, &latchkeyv1.OpenSessionRequest{ClientId: r.ClientID, TtlMs: r.TTLMS})
	answer := sessionJSONOf(resp)
	answer.ClientID = r.ClientID
	return http.StatusOK, answer, err
}

func (a *locksAPI) renewSession(ctx context.Context, r *sessionIDJSON) (int, any, error) {
	id, err := sessionID(r.SessionID)
	if err != nil {
		return 0, nil, err
	}
	resp, err := a.calls.RenewSession(ctx, &latchkeyv1.RenewSessionRequest{SessionId: id})
	return http.StatusOK, sessionJSONOf(resp), err
}

func (a *locksAPI) closeSession(ctx context.Context, r *sessionIDJSON) (int, any, error) {
	id, err := sessionID(r.SessionID)
	if err != nil {
		return 0, nil, err
	}
	_, err = a.calls.CloseSession(ctx, &latchkeyv1.CloseSessionRequest{SessionId: id})
	return http.StatusOK, closedJSON{Closed: true}, err
}

func (a *locksAPI) get(_ http.ResponseWriter, r *http.Request, name string) (int, any, error) {
	l, err := a.calls.Get(r.Context(), &latchkeyv1.GetRequest{LockKey: name})
	if err != nil {
		return 0, nil, err
	}
	answer := lockJSON{
		LockKey: l.GetLockKey(), Holders: placesJSONOf(l.GetHolders()), Waiters: placesJSONOf(l.GetWaiters()),
		DelayedMS: l.GetDelayedMs(), Revision: l.GetRevision(),
	}
	for i, h := range l.GetHolders() {
		answer.Holders[i].RemainingMS = &h.RemainingMs
	}
	return http.StatusOK, answer, nil
}

func (a *locksAPI) list(_ http.ResponseWriter, r *http.Request, _ string) (int, any, error) {
	query := r.URL.Query()
	m := &latchkeyv1.ListRequest{Prefix: query.Get("prefix"), Cursor: query.Get("cursor")}
	switch query.Get("sort") {
	case "":
	case "waiters":
		m.ByWaiters = true
	default:
		return 0, nil, &lock.FieldError{Field: "sort", Reason: "can only be waiters"}
	}
	if query.Has("limit") {
		limit, err := strconv.ParseInt(query.Get("limit"), 10, 32)
		if err != nil || limit <= 0 {
			return 0, nil, &lock.FieldError{Field: "limit", Reason: "is no number above 0, or too large"}
		}
		m.Limit = int32(limit)
	}
	resp, err := a.calls.List(r.Context(), m)
	if err != nil {
		return 0, nil, err
	}
	answer := listJSON{Locks: make([]listedJSON, len(resp.GetLocks())), Cursor: resp.GetCursor(), Revision: resp.GetRevision()}
	for i, l := range resp.GetLocks() {
		answer.Locks[i] = listedJSON{LockKey: l.GetLockKey(), Holders: placesJSONOf(l.GetHolders()), Waiters: l.GetWaiters()}
	}
	return http.StatusOK, answer, nil
}
