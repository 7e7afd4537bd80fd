package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lock"
)

// ask makes a request of the lock API and returns the status and the answer.
func (w *web) ask(method, path, body string, header ...string) (status int, answer map[string]any) {
	w.Helper()
	resp := w.send(w.Context(), method, "/api/v1/"+path, body, header...)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		w.Fatalf("%s %s %s: %d, %v", method, path, body, resp.StatusCode, err)
	}
	return resp.StatusCode, answer
}

// Requests that can't be are refused with the name of the field.
func TestLockFields(t *testing.T) {
	w := newWeb(t, start(t, nil))
	long := strings.Repeat("x", lock.MaxName+1)
	const ok = `"lock_key":"l","client_id":"a","lease_time_ms":10000`
	for _, tc := range []struct{ path, body, field string }{
		{"locks/acquire", `{}`, "lock_key"},
		{"locks/acquire", `null`, "lock_key"},
		{"locks/acquire", `{"lock_key":"","client_id":"a","lease_time_ms":10000}`, "lock_key"},
		{"locks/acquire", `{"lock_key":"` + long + `","client_id":"a","lease_time_ms":10000}`, "lock_key"},
		{"locks/acquire", `{"lock_key":7,"client_id":"a","lease_time_ms":10000}`, "lock_key"},
		{"locks/acquire", `{"lock_key":"l","client_id":"` + long + `","lease_time_ms":10000}`, "client_id"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":0}`, "lease_time_ms"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":-1}`, "lease_time_ms"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":9223372036854775807}`, "lease_time_ms"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":1e30}`, "lease_time_ms"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":1.5}`, "lease_time_ms"},
		{"locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":"10"}`, "lease_time_ms"},
		{"locks/acquire", `{` + ok + `,"block_time_ms":-1}`, "block_time_ms"},
		{"locks/acquire", `{` + ok + `,"block_time_ms":9223372036854775807}`, "block_time_ms"},
		{"locks/acquire", `{` + ok + `,"lock_delay_ms":-1}`, "lock_delay_ms"},
		{"locks/acquire", `{` + ok + `,"mode":"both"}`, "mode"},
		{"locks/acquire", `{` + ok + `,"permits":1}`, "permits"},
		{"locks/acquire", `{` + ok + `,"permits":3,"of":2}`, "permits"},
		{"locks/acquire", `{` + ok + `,"of":3000000000}`, "of"},
		{"locks/acquire", `{` + ok + `,"session_id":"x"}`, "session_id"},
		{"locks/acquire", `{` + ok + `,"session_id":"-1"}`, "session_id"},
		{"locks/acquire", `{` + ok + `,"request_id":"` + long + `"}`, "request_id"},
		{"locks/acquire", `{` + ok + `,"metadata":"` + strings.Repeat(long, 4) + `"}`, "metadata"},
		{"locks/acquire", `{` + ok + `,"keys":["m"]}`, "keys"},
		{"locks/acquire", `{"keys":["m","m"],"client_id":"a","lease_time_ms":10000}`, "keys"},
		{"locks/acquire", `{` + ok + `,"colour":"red"}`, "colour"},
		{"locks/renew", `{"lock_key":"l","client_id":"a","fencing_token":0}`, "fencing_token"},
		{"locks/renew", `{"lock_key":"l","client_id":"a","fencing_token":2,"extend_time_ms":0}`, "extend_time_ms"},
		{"locks/renew", `{"lock_key":"l","client_id":"a","fencing_token":2,"extend_time_ms":-5}`, "extend_time_ms"},
		{"locks/release", `{"lock_key":"","client_id":"a","fencing_token":2}`, "lock_key"},
		{"locks/release", `{"lock_key":"l","client_id":"a","fencing_token":-2}`, "fencing_token"},
		{"locks/validate", `{"lock_key":"l"}`, "fencing_token"},
		{"locks/validate", `{"lock_key":"l","fencing_token":2,"client_id":"a"}`, "client_id"},
		{"locks/force-release", `{"lock_key":"l","fencing_token":2,"reason":"` + strings.Repeat(long, 4) + `"}`, "reason"},
		{"sessions", `{"client_id":"a"}`, "ttl_ms"},
		{"sessions", `{"client_id":"a","ttl_ms":-1}`, "ttl_ms"},
		{"sessions", `{"client_id":"a","ttl_ms":9223372036854775807}`, "ttl_ms"},
		{"sessions", `{"client_id":"` + long + `","ttl_ms":10000}`, "client_id"},
		{"sessions/renew", `{}`, "session_id"},
		{"sessions/close", `{"session_id":5}`, "session_id"},
		{"locks/acquire", ``, ""},
		{"locks/acquire", `{`, ""},
		{"locks/acquire", `[]`, ""},
		{"locks/acquire", `{` + ok + `} {}`, ""},
		{"locks/acquire", "{\"lock_key\":\"\xff\"}", ""},
	} {
		status, answer := w.ask(http.MethodPost, tc.path, tc.body)
		field, _ := answer["field"].(string)
		wrong, _ := answer["error"].(string)
		if status != http.StatusBadRequest || !strings.Contains(wrong, tc.field) || wrong == "" || field != tc.field {
			t.Errorf("%s %.80s: %d %v, want field %q", tc.path, tc.body, status, answer, tc.field)
		}
	}
	for path, field := range map[string]string{
		"locks?limit=x": "limit", "locks?limit=-1": "limit", "locks?limit=1001": "limit", "locks?colour=red": "colour",
		"locks?prefix=a&prefix=b": "prefix", "locks?prefix=%ff": "prefix", "locks?prefix=" + long: "prefix", "locks?cursor=*": "cursor",
		"locks/l?from=1": "from", "locks/l/watch?from=x": "from", "locks/l/watch?from=-1": "from", "locks/": "lock_key",
		"locks/" + long: "lock_key", "locks/%ff": "lock_key", "locks//watch": "lock_key",
	} {
		if status, answer := w.ask(http.MethodGet, path, ""); status != http.StatusBadRequest || answer["field"] != field {
			t.Errorf("%.80s: %d %v, want field %q", path, status, answer, field)
		}
	}
	if status, _ := w.ask(http.MethodPost, "locks/acquire", strings.Repeat(" ", maxLocksBody)+"{}"); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large: %d", status)
	}
}

// Every path has one method.
func TestLockMethods(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	for _, e := range newLocksAPI(nil).endpoints {
		path := strings.TrimPrefix(strings.ReplaceAll(e.path, pathKey, "l"), locksPath)
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
			if method == e.method {
				continue
			}
			resp := w.send(t.Context(), method, locksPath+path, "{}")
			resp.Body.Close()
			if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != e.method {
				t.Errorf("%s %s: %d, allowed is %q", method, path, resp.StatusCode, resp.Header.Get("Allow"))
			}
		}
	}
	for _, path := range []string{"", "lock", "sessions/", "sessions/x"} {
		if status, _ := w.ask(http.MethodGet, path, ""); status != http.StatusNotFound {
			t.Errorf("%q: %d", path, status)
		}
	}
	off := newWeb(t, start(t, func(c *Config) { c.DisableGateway = true }))
	if resp := off.send(t.Context(), http.MethodGet, "/api/v1/locks", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without the JSON APIs: %d", resp.StatusCode)
	}
}

// A lock of any name is found at its path, also where a call or a watch has that.
func TestLockNames(t *testing.T) {
	w := newWeb(t, start(t, nil))
	for path, name := range map[string]string{
		"a/b/c": "a/b/c", "a%2Fb": "a/b", "/a": "/a", "%2Fa%2f": "/a/", "a//b": "a//b", "a%20%25": "a %", "%C3%A4": "ä",
		"../x": "../x", "..": "..", "a%2Fwatch": "a/watch", "%61cquire": "acquire", "acquire/x": "acquire/x",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/api/v1/locks/"+path, http.NoBody)
		check(t, err)
		resp, err := w.client.Transport.RoundTrip(r)
		check(t, err)
		var answer struct {
			Name string `json:"lock_key"`
		}
		check(t, json.NewDecoder(resp.Body).Decode(&answer))
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || answer.Name != name {
			t.Errorf("%s: %d %q, want %q", path, resp.StatusCode, answer.Name, name)
		}
	}
}

// Pages of other origins use the lock API only where --cors lets them.
func TestLockOrigins(t *testing.T) {
	const page = "https://page.example"
	for _, tc := range []struct {
		allowed []string
		want    int
	}{{nil, 403}, {[]string{"https://other.example"}, 403}, {[]string{page}, 200}, {[]string{"*"}, 200}} {
		r := start(t, func(c *Config) { c.AllowedOrigins = tc.allowed })
		w := newWeb(t, r)
		status, body := w.post("/api/v1/locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":10000}`,
			"Origin", page, "Content-Type", "text/plain")
		if status != tc.want {
			t.Errorf("--cors %v: %d %s", tc.allowed, status, body)
		}
		status, _ = w.post("/api/v1/locks/validate", `{"lock_key":"l","fencing_token":1}`, "Origin", "http://"+r.addr)
		if status != 200 {
			t.Errorf("--cors %v, the same origin: %d", tc.allowed, status)
		}
	}
}

// What fails below is told by its status.
func TestLockFailures(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	const acquire = `{"lock_key":"l","client_id":"a","lease_time_ms":10000}`
	for err, want := range map[error]int{raft.ErrTimeout: 503, raft.ErrTooManyRequests: 429, errCorrupt: 500, errNoSpace: 507} {
		r.set(func() { r.fail = err })
		if status, answer := w.ask(http.MethodPost, "locks/acquire", acquire); status != want || answer["acquired"] != nil {
			t.Errorf("%v: %d %v", err, status, answer)
		}
	}
}

// A watch goes on behind the revision that a browser has had last.
func TestLockEvents(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	read := func(path string, n int, header ...string) string {
		t.Helper()
		resp := w.send(t.Context(), http.MethodGet, "/api/v1/"+path, "", header...)
		defer resp.Body.Close()
		if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, kind)
		}
		var got []string
		lines := bufio.NewScanner(resp.Body)
		for len(got) < n && lines.Scan() {
			if line := lines.Text(); line != "" && !strings.HasPrefix(line, "data: ") {
				got = append(got, line)
			}
		}
		return strings.Join(got, "; ")
	}
	_, held := w.ask(http.MethodPost, "locks/acquire", `{"lock_key":"l","client_id":"a","lease_time_ms":10000}`)
	if held["fencing_token"] != 2.0 {
		t.Fatalf("acquired: %v", held)
	}
	_, _ = w.ask(http.MethodPost, "locks/release", `{"lock_key":"l","client_id":"a","fencing_token":2}`)
	_, _ = w.ask(http.MethodPost, "locks/acquire", `{"lock_key":"l","client_id":"b","lease_time_ms":10000}`)
	for _, tc := range []struct {
		path, last, want string
	}{
		{"locks/l/watch", "", "event: queued; event: granted; id: 4"},
		{"locks/free/watch", "", "id: 4"},
		{"locks/l/watch?from=2", "", "id: 1; event: queued; event: granted; id: 2; event: ended; id: 3; event: queued; event: granted; id: 4"},
		{"locks/l/watch?from=2", "3", "id: 3; event: queued; event: granted; id: 4"},
	} {
		var header []string
		if tc.last != "" {
			header = []string{lastEventID, tc.last}
		}
		if got := read(tc.path, strings.Count(tc.want, ";")+1, header...); got != tc.want {
			t.Errorf("%s after %q: %q, want %q", tc.path, tc.last, got, tc.want)
		}
	}
	_, err := r.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 4})
	check(t, err)
	if status, answer := w.ask(http.MethodGet, "locks/l/watch?from=2", ""); status != http.StatusGone {
		t.Errorf("from compacted history: %d %v", status, answer)
	}
	if status, answer := w.ask(http.MethodGet, "locks/l/watch?from=99", ""); status != http.StatusBadRequest {
		t.Errorf("from the future: %d %v", status, answer)
	}
	if status, answer := w.ask(http.MethodGet, "locks/l/watch", "", lastEventID, "x"); status != http.StatusBadRequest || answer["field"] != lastEventID {
		t.Errorf("after no revision: %d %v", status, answer)
	}
}

// Over gRPC the details name the field that can't be.
func TestLockFieldsOverGRPC(t *testing.T) {
	r := start(t, nil)
	calls := latchkeyv1.NewLocksClient(r.conn)
	_, err := calls.Acquire(t.Context(), &latchkeyv1.AcquireRequest{LockKey: "l", LeaseTimeMs: -1})
	wantStatus(t, err, codes.InvalidArgument, "latchkey: lease_time_ms must be above 0")
	if got := fieldOf(err); got != "lease_time_ms" {
		t.Errorf("field %q", got)
	}
	_, err = calls.Acquire(t.Context(), &latchkeyv1.AcquireRequest{LockKey: "l", LeaseTimeMs: 1, Mode: 9})
	wantStatus(t, err, codes.InvalidArgument, "latchkey: mode is neither exclusive nor shared")
	_, err = calls.RenewSession(t.Context(), &latchkeyv1.RenewSessionRequest{SessionId: 9})
	wantStatus(t, err, codes.FailedPrecondition, "latchkey: there is no such session")
	_, err = calls.Acquire(t.Context(), &latchkeyv1.AcquireRequest{LockKey: "l", SessionId: 9})
	wantStatus(t, err, codes.FailedPrecondition, "latchkey: there is no such session")
}

// Watches and waiting calls end with the server, and say so.
func TestLocksEndWithTheServer(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	const acquire = `{"lock_key":"l","client_id":%q,"lease_time_ms":60000,"block_time_ms":600000}`
	_, _ = w.ask(http.MethodPost, "locks/acquire", fmt.Sprintf(acquire, "a"))
	watch := w.send(t.Context(), http.MethodGet, "/api/v1/locks/l/watch", "")
	defer watch.Body.Close()
	lines := bufio.NewScanner(watch.Body)
	await := func(line string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), line) {
				return
			}
		}
		t.Fatalf("no %q: %v", line, lines.Err())
	}
	await("event: granted")
	refused := make(chan int, 1)
	go func() {
		status, _ := w.ask(http.MethodPost, "locks/acquire", fmt.Sprintf(acquire, "b"))
		refused <- status
	}()
	await("event: queued")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.server.Stop(context.Background())
	}()
	await("event: closed")
	await(`data: {"error":"etcdserver: server stopped"}`)
	if status := soon(t, refused); status != http.StatusServiceUnavailable {
		t.Errorf("a waiting call: %d", status)
	}
	soon(t, stopped)
}
