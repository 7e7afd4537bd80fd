package api

import (
	"context"
	"errors"
	"net/http"
	"testing"
)

// What comes by HTTP passes the steps that every call does, and fails as over a connection.
func TestCallsInTheProcess(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	const acquire = `{"lock_key":"l","client_id":"a","lease_time_ms":10000}`
	handled := func(code, count string) {
		t.Helper()
		name := `grpc_server_handled_total{grpc_code="` + code + `",grpc_method="Acquire",grpc_service="latchkey.v1.Locks",grpc_type="unary"}`
		if got := series(t, r, name); got != count {
			t.Errorf("%s calls that ended with %s, want %s", got, code, count)
		}
	}
	if status, answer := w.ask(http.MethodPost, "locks/acquire", acquire); status != http.StatusOK || answer["fencing_token"] != 2.0 {
		t.Errorf("acquired: %d %v", status, answer)
	}
	handled("OK", "1")
	for _, tc := range []struct {
		fail   func()
		code   string
		status int
	}{
		{func() { r.fail = context.DeadlineExceeded }, "DeadlineExceeded", http.StatusServiceUnavailable},
		{func() { r.fail = errors.New("unknown") }, "Unknown", http.StatusInternalServerError},
		{func() { r.fail, r.before = nil, func(context.Context) { panic("broken") } }, "Internal", http.StatusInternalServerError},
	} {
		r.set(tc.fail)
		if status, answer := w.ask(http.MethodPost, "locks/acquire", acquire); status != tc.status {
			t.Errorf("%s: %d %v", tc.code, status, answer)
		}
		handled(tc.code, "1")
	}
}
