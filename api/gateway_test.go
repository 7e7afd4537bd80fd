package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// web is an HTTP client of a running server with connections of its own.
type web struct {
	*testing.T

	client *http.Client
	url    string
}

func newWeb(t *testing.T, r *running) *web {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &web{T: t, client: &http.Client{Transport: transport}, url: "http://" + r.addr}
}

// send sends a request and returns the answer, whose body the caller closes.
func (w *web) send(ctx context.Context, method, path, body string, header ...string) *http.Response {
	w.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	check(w, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	resp, err := w.client.Do(req)
	check(w, err)
	return resp
}

// post sends a body and returns the status and body of the answer.
func (w *web) post(path, body string, header ...string) (status int, text string) {
	w.Helper()
	resp := w.send(w.Context(), http.MethodPost, path, body, header...)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	check(w, err)
	return resp.StatusCode, string(b)
}

// want posts a body and compares the answer as JSON.
func (w *web) want(path, body string, status int, want string) {
	w.Helper()
	gotStatus, got := w.post(path, body)
	var g, v any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		w.Errorf("%s %s: %d %q: %v", path, body, gotStatus, got, err)
		return
	}
	check(w, json.Unmarshal([]byte(want), &v))
	if gotStatus != status {
		w.Errorf("%s %s: status %d, want %d", path, body, gotStatus, status)
	}
	diff(w, v, g)
}

// head is the header of an answer as JSON.
func head(rev int64) string {
	return fmt.Sprintf(`{"cluster_id":"%d","member_id":"%d","revision":"%d","raft_term":"%d"}`,
		uint64(testCluster), uint64(testMember), rev, testTerm)
}

// TestGatewayNumbers checks that numbers of 64 bits are read in both forms and
// written as strings (6887).
func TestGatewayNumbers(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	const id = "7587862094061739265" // more than a double holds
	w.want("/v3/lease/grant", `{"TTL":60,"ID":`+id+`}`, 200, `{"header":`+head(1)+`,"ID":"`+id+`","TTL":"60"}`)
	w.want("/v3/lease/grant", `{"TTL":"61","ID":"5"}`, 200, `{"header":`+head(1)+`,"ID":"5","TTL":"61"}`)
	w.want("/v3/kv/put", `{"key":"YQ==","lease":`+id+`}`, 200, `{"header":`+head(2)+`}`)
	w.want("/v3/kv/put", `{"key":"Yg==","lease":"`+id+`"}`, 200, `{"header":`+head(3)+`}`)
	w.want("/v3/kv/range", `{"key":"Yg=="}`, 200, `{"header":`+head(3)+`,"kvs":[{"key":"Yg==",
		"create_revision":"3","mod_revision":"3","version":"1","lease":"`+id+`"}],"count":"1"}`)
	for _, path := range []string{"/v3/lease/timetolive", "/v3/kv/lease/timetolive", "/v3beta/lease/timetolive"} {
		w.want(path, `{"ID":"5"}`, 200, `{"header":`+head(3)+`,"ID":"5","TTL":"60","grantedTTL":"61"}`)
	}
	w.want("/v3/kv/lease/revoke", `{"ID":5}`, 200, `{"header":`+head(3)+`}`)
	w.want("/v3/lease/leases", `{}`, 200, `{"header":`+head(3)+`,"leases":[{"ID":"`+id+`"}]}`)
}

// TestGatewayDefaults checks that fields with their default value are left out
// (10065, 10780, 10743).
func TestGatewayDefaults(t *testing.T) {
	w := newWeb(t, start(t, nil))
	w.want("/v3/kv/range", `{"key":"eA=="}`, 200, `{"header":`+head(1)+`}`)
	w.want("/v3/kv/range", "", 400, `{"code":3,"message":"etcdserver: key is not provided"}`)
	w.want("/v3/kv/txn", `{"compare":[{"target":"VERSION","key":"eA==","version":"1"}],
		"success":[{"request_put":{"key":"eA=="}}]}`, 200, `{"header":`+head(1)+`}`)
	w.want("/v3/kv/txn", `{"unknown":{"field":1},"success":[{"request_range":{"key":"eA=="}}]}`, 200,
		`{"header":`+head(1)+`,"succeeded":true,"responses":[{"response_range":{"header":{"revision":"1"}}}]}`)
}

// TestGatewayBase64 checks both alphabets, with and without padding (9428).
func TestGatewayBase64(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	raw := []byte{0x00, 0xff, 0xfb, 0xfe}
	for i, key := range []string{
		base64.StdEncoding.EncodeToString(raw), base64.URLEncoding.EncodeToString(raw), base64.RawStdEncoding.EncodeToString(raw),
	} {
		w.want("/v3/kv/put", `{"key":"`+key+`","value":"`+key+`"}`, 200, `{"header":`+head(int64(i+2))+`}`)
	}
	resp, err := r.kv.Range(t.Context(), &pb.RangeRequest{Key: raw})
	check(t, err)
	if kvs := resp.GetKvs(); len(kvs) != 1 || kvs[0].GetVersion() != 3 || !bytes.Equal(kvs[0].GetValue(), raw) {
		t.Errorf("stored %v", kvs)
	}
	if status, body := w.post("/v3/kv/put", `{"key":"*"}`); status != 400 || !strings.HasPrefix(body, `{"code":3,`) {
		t.Errorf("an invalid key: %d %s", status, body)
	}
}

// TestGatewayErrors checks statuses and bodies of what is refused.
func TestGatewayErrors(t *testing.T) {
	w := newWeb(t, start(t, func(c *Config) { c.MaxRequestBytes = 1000 }))
	w.want("/v3/kv/range", `{"key":"eA==","revision":9}`, 400,
		`{"code":11,"message":"etcdserver: mvcc: required revision is a future revision"}`)
	w.want("/v3/lease/revoke", `{"ID":9}`, 404, `{"code":5,"message":"etcdserver: requested lease not found"}`)
	w.want("/v3/nothing", `{}`, 404, `{"code":5,"message":"Not Found"}`)
	w.want("/v3/lock/unlock", `{}`, 500, `{"code":2,"message":"etcdserver: key is not provided"}`)
	if status, body := w.post("/v3/kv/put", `{"key":"`+strings.Repeat("eA==", 1<<20)+`"}`); status != 400 ||
		!strings.Contains(body, "too large") {
		t.Errorf("a body without end: %d %s", status, body)
	}
	resp := w.send(t.Context(), http.MethodGet, "/v3/kv/range", "")
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	if resp.StatusCode != http.StatusNotImplemented || !strings.HasPrefix(string(body), `{"code":12,`) ||
		!strings.HasSuffix(string(body), `"message":"Method Not Allowed"}`) {
		t.Errorf("GET: %d %s", resp.StatusCode, body)
	}
}

func TestGatewayDisabled(t *testing.T) {
	w := newWeb(t, start(t, func(c *Config) { c.DisableGateway = true }))
	if status, body := w.post("/v3/kv/range", `{"key":"eA=="}`); status != 404 || body != "404 page not found\n" {
		t.Errorf("without the gateway: %d %q", status, body)
	}
}

// TestGatewayLock checks that the fencing token comes as a header.
func TestGatewayLock(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	r.grant(t, 0xa)
	resp := w.send(t.Context(), http.MethodPost, "/v3/lock/lock", `{"name":"bA==","lease":"10"}`)
	defer resp.Body.Close()
	if token := resp.Header.Get("Grpc-Metadata-" + FencingTokenHeader); resp.StatusCode != http.StatusOK || token != "2" {
		t.Errorf("%d with token %q", resp.StatusCode, token)
	}
	w.want("/v3/election/leader", `{"name":"bA=="}`, 200, `{"header":`+head(2)+`,"kv":{"key":"bC9h",
		"create_revision":"2","mod_revision":"2","version":"1","lease":"10"}}`)
	w.want("/v3/lock/unlock", `{"key":"bC9h"}`, 200, `{"header":`+head(3)+`}`)
}

// lines reads a stream's answer line by line.
type lines struct {
	*testing.T

	scanner *bufio.Scanner
}

func (w *web) stream(ctx context.Context, path, body string) *lines {
	w.Helper()
	resp := w.send(ctx, http.MethodPost, path, body)
	w.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		w.Fatalf("%s: status %d", path, resp.StatusCode)
	}
	return &lines{w.T, bufio.NewScanner(resp.Body)}
}

func (l *lines) want(want string) {
	l.Helper()
	if !l.scanner.Scan() {
		l.Fatalf("the stream ended: %v", l.scanner.Err())
	}
	var g, v any
	check(l, json.Unmarshal(l.scanner.Bytes(), &g))
	check(l, json.Unmarshal([]byte(want), &v))
	diff(l, v, g)
}

func TestGatewayWatch(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := w.stream(ctx, "/v3/watch", `{"create_request":{"key":"eA==","prev_kv":true}}`)
	watch.want(`{"result":{"header":` + head(1) + `,"created":true}}`)
	r.put(t, "x", "1")
	watch.want(`{"result":{"header":` + head(2) + `,"events":[{"kv":{"key":"eA==","value":"MQ==",
		"create_revision":"2","mod_revision":"2","version":"1"}}]}}`)
	_, err := r.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("x")})
	check(t, err)
	watch.want(`{"result":{"header":` + head(3) + `,"events":[{"type":"DELETE","kv":{"key":"eA==","mod_revision":"3"},
		"prev_kv":{"key":"eA==","value":"MQ==","create_revision":"2","mod_revision":"2","version":"1"}}]}}`)

	r.grant(t, 9)
	alive := w.stream(t.Context(), "/v3/lease/keepalive", `{"ID":9}{"ID":"9"}`)
	alive.want(`{"result":{"header":` + head(3) + `,"ID":"9","TTL":"3600"}}`)
	alive.want(`{"result":{"header":` + head(3) + `,"ID":"9","TTL":"3600"}}`)

	observe := w.stream(t.Context(), "/v3/watch", `{"create_request":{"key":"eA=="}}`)
	observe.want(`{"result":{"header":` + head(3) + `,"created":true}}`)
	stop(r, 10*time.Second)
	observe.want(`{"error":{"code":14,"message":"etcdserver: server stopped"}}`)
}

// TestGatewayBrokenBodies checks that what can't be read is refused, and hurts
// nobody else (5856, 19509).
func TestGatewayBrokenBodies(t *testing.T) {
	r := start(t, nil)
	w := newWeb(t, r)
	var all sync.WaitGroup
	for i := range 100 {
		path := []string{"/v3/watch", "/v3/lease/keepalive", "/v3/kv/put"}[i%3]
		body := []string{"v", `{"create_request":{"key`, "[1]", `{"create_request":1,"ID":{},"key":1}`, "\xff"}[i%5]
		all.Go(func() {
			if status, text := w.post(path, body); status != 400 || !strings.HasPrefix(text, `{"code":3,`) {
				t.Errorf("%s %q: %d %s", path, body, status, text)
			}
		})
	}
	all.Wait()
	w.want("/v3/watch", "", 400, `{"code":3,"message":"EOF"}`)
	w.want("/v3/lease/keepalive", `{"x":"`+strings.Repeat("x", 9<<20), 400, `{"code":3,"message":"message is too large"}`)

	// A request without content opens a stream that says nothing.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v3/watch", strings.NewReader("{}"))
	check(t, err)
	quiet := make(chan error, 1)
	go func() {
		resp, err := w.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		quiet <- err
	}()
	r.put(t, "k", "v")
	select {
	case err := <-quiet:
		t.Errorf("a quiet stream ended: %v", err)
	default:
	}
	cancel()
	if err := <-quiet; err == nil {
		t.Error("a quiet stream was answered")
	}
}

// TestGatewayManyWatches checks that open watches hold up no other call, whatever
// bound there is on the calls of a client's connection (11826, 14169).
func TestGatewayManyWatches(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxConcurrentStreams = 50 })
	w := newWeb(t, r)
	const n = 2000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := make(chan struct{})
	limit := make(chan struct{}, 100)
	var all sync.WaitGroup
	for range n {
		limit <- struct{}{}
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v3/watch",
				strings.NewReader(`{"create_request":{"key":"eA=="}}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := w.client.Do(req)
			<-limit
			if err != nil {
				t.Error(err)
				open <- struct{}{}
				return
			}
			defer resp.Body.Close()
			b := make([]byte, 1)
			if _, err := io.ReadFull(resp.Body, b); err != nil {
				t.Error(err)
			}
			open <- struct{}{}
			_, _ = io.Copy(io.Discard, resp.Body) // ends with ctx
		})
	}
	for range n {
		<-open
	}
	for range 100 {
		began := time.Now()
		w.want("/v3/kv/range", `{"key":"eA=="}`, 200, `{"header":`+head(1)+`}`)
		if d := time.Since(began); d > 30*time.Second {
			t.Fatalf("a range took %v", d)
		}
	}
	w.want("/v3/auth/status", `{}`, 200, `{"header":`+head(1)+`,"authRevision":"1"}`)
	cancel()
	all.Wait()
}

func TestGatewayWebsocket(t *testing.T) {
	r := start(t, nil)
	c, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+r.addr+"/v3/watch", nil)
	check(t, err)
	resp.Body.Close()
	defer c.Close()
	want := func(want string) {
		t.Helper()
		var g, v any
		check(t, c.ReadJSON(&g))
		check(t, json.Unmarshal([]byte(want), &v))
		diff(t, v, g)
	}
	say := func(text string) {
		t.Helper()
		check(t, c.WriteMessage(websocket.TextMessage, []byte(text)))
	}
	say(`{"create_request":{"key":"eA==","watch_id":"7"}}`)
	want(`{"result":{"header":` + head(1) + `,"watch_id":"7","created":true}}`)
	say(`{"create_request":{"key":"eQ=="}}`)
	want(`{"result":{"header":` + head(1) + `,"created":true}}`)
	r.put(t, "y", "")
	want(`{"result":{"header":` + head(2) + `,"events":[{"kv":{"key":"eQ==",
		"create_revision":"2","mod_revision":"2","version":"1"}}]}}`)
	say(`{"cancel_request":{"watch_id":"7"}}`)
	want(`{"result":{"header":` + head(2) + `,"watch_id":"7","canceled":true}}`)
	// The server's end is the stream's.
	stop(r, 10*time.Second)
	want(`{"error":{"code":14,"message":"etcdserver: server stopped"}}`)
}

// TestWebsocketBrokenMessage checks that an unreadable first message is answered.
func TestWebsocketBrokenMessage(t *testing.T) {
	r := start(t, nil)
	c, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+r.addr+"/v3/watch", nil)
	check(t, err)
	resp.Body.Close()
	defer c.Close()
	check(t, c.WriteMessage(websocket.TextMessage, []byte("v")))
	_, answer, err := c.ReadMessage()
	check(t, err)
	if !bytes.HasPrefix(answer, []byte(`{"code":3,`)) {
		t.Errorf("answered %s", answer)
	}
}

func TestAccess(t *testing.T) {
	r := start(t, func(c *Config) {
		c.AllowedHosts, c.AllowedOrigins = []string{"good.example", "127.0.0.1"}, []string{"https://page.example"}
	})
	w := newWeb(t, r)
	for _, tc := range []struct {
		method, host, origin, path string
		status                     int
		allow                      string
	}{
		{http.MethodGet, "good.example:2379", "https://page.example", "/health", 200, "https://page.example"},
		{http.MethodGet, "good.example", "https://other.example", "/version", 200, ""},
		{http.MethodGet, "evil.example", "https://page.example", "/version", 421, ""},
		{http.MethodOptions, "127.0.0.1", "https://page.example", "/v3/kv/put", 200, "https://page.example"},
		{http.MethodOptions, "good.example", "", "/nothing", 200, ""},
		{http.MethodPost, "good.example", "https://page.example", "/v3/kv/range", 200, "https://page.example"},
		{http.MethodPost, "good.example", "http://good.example", "/v3/kv/range", 200, ""},
		{http.MethodPost, "good.example:443", "https://good.example", "/v3/kv/range", 200, ""},
		{http.MethodPost, "good.example:80", "http://GOOD.example", "/v3/kv/range", 200, ""},
		{http.MethodPost, "good.example:2379", "http://good.example", "/v3/kv/range", 403, ""},
		{http.MethodPost, "good.example", "", "/v3/kv/range", 200, ""},
		{http.MethodPost, "good.example", "https://other.example", "/v3/kv/range", 403, ""},
		{http.MethodPost, "good.example", "https://other.example", "/v3beta/kv/range", 403, ""},
		{http.MethodPost, "good.example", "null", "/v3/kv/range", 403, ""},
		{http.MethodOptions, "good.example", "https://other.example", "/v3/kv/range", 403, ""},
	} {
		resp := w.send(t.Context(), tc.method, tc.path, `{"key":"eA=="}`, "Host", tc.host, "Origin", tc.origin, "Content-Type", "text/plain")
		resp.Body.Close()
		if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != tc.status || got != tc.allow {
			t.Errorf("%+v: %d, allowed %q", tc, resp.StatusCode, got)
		}
	}
	// By default everybody may ask for everything, but for pages from elsewhere.
	w = newWeb(t, start(t, nil))
	resp := w.send(t.Context(), http.MethodOptions, "/v3/kv/put", "", "Host", "evil.example")
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Access-Control-Allow-Origin") != "*" ||
		resp.Header.Get("Access-Control-Allow-Methods") != "POST, GET, OPTIONS, PUT, DELETE" ||
		resp.Header.Get("Access-Control-Allow-Headers") != "accept, content-type, authorization" {
		t.Errorf("by default: %d %v", resp.StatusCode, resp.Header)
	}
	for origin, want := range map[string]string{"": "*", "https://other.example": ""} {
		resp := w.send(t.Context(), http.MethodGet, "/version", "", "Origin", origin)
		resp.Body.Close()
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("pages of %q may read what those of %q may", origin, got)
		}
	}
}

// Pages of other origins use the API only where --cors lets them, by websocket or by what a
// browser sends unasked.
func TestForeignPages(t *testing.T) {
	for _, tc := range []struct {
		origins []string
		origin  string
		allowed bool
	}{
		{nil, "", true},
		{nil, "own", true},
		{nil, "https://page.example", false},
		{nil, "null", false},
		{[]string{"*"}, "https://page.example", true},
		{[]string{"https://page.example"}, "https://page.example", true},
		{[]string{"https://page.example"}, "own", true},
		{[]string{"https://page.example"}, "https://page.example.evil", false},
		{[]string{"https://page.example"}, "http://page.example", false},
	} {
		r := start(t, func(c *Config) { c.AllowedOrigins = tc.origins })
		header := http.Header{}
		switch tc.origin {
		case "":
		case "own":
			header.Set("Origin", "http://"+r.addr)
		default:
			header.Set("Origin", tc.origin)
		}
		for _, path := range []string{"/v3/watch", "/v3beta/watch", "/v3/kv/put"} {
			c, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+r.addr+path, header)
			if err == nil {
				c.Close()
			}
			if resp == nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if (err == nil) != tc.allowed || !tc.allowed && resp.StatusCode != http.StatusForbidden {
				t.Errorf("%q with --cors %q opens %s: %d, %v", tc.origin, tc.origins, path, resp.StatusCode, err)
			}
		}
		w := newWeb(t, r)
		status, _ := w.post("/v3/kv/put", `{"key":"eA==","value":"eQ=="}`, "Origin", header.Get("Origin"), "Content-Type", "text/plain")
		if (status == http.StatusOK) != tc.allowed {
			t.Errorf("%q with --cors %q writes: %d", tc.origin, tc.origins, status)
		}
	}
}

// A message of a websocket is bounded like a body, however many frames it has, and is not
// read further than that.
func TestWebsocketMessagesAreBounded(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRequestBytes = 1 << 10 })
	most := jsonPerByte * (1<<10 + messageOverhead)
	for _, frames := range []int{1, 100} {
		c, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+r.addr+"/v3/watch", nil)
		check(t, err)
		resp.Body.Close()
		// White space belongs to the first message.
		check(t, c.WriteMessage(websocket.TextMessage, bytes.Repeat([]byte(" "), most)))
		check(t, c.WriteMessage(websocket.TextMessage, []byte(`{"create_request":{"key":"eA=="}}`)))
		_, first, err := c.ReadMessage()
		if err != nil || !bytes.Contains(first, []byte("too large")) && !bytes.Contains(first, []byte("created")) {
			t.Errorf("the largest message: %s, %v", first, err)
		}
		c.Close()

		c, resp, err = websocket.DefaultDialer.DialContext(t.Context(), "ws://"+r.addr+"/v3/watch", nil)
		check(t, err)
		resp.Body.Close()
		message, err := c.NextWriter(websocket.TextMessage)
		check(t, err)
		for range frames {
			// It fails where the other side has hung up.
			if _, err = message.Write(bytes.Repeat([]byte(" "), 2*most/frames)); err != nil {
				break
			}
		}
		check(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		// What the server says of it may be lost when it hangs up.
		var slow net.Error
		if _, _, err := c.ReadMessage(); err == nil || errors.As(err, &slow) && slow.Timeout() {
			t.Errorf("more of a message in %d frames is waited for: %v", frames, err)
		}
		c.Close()
	}
}
