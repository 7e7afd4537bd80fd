package cases

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// jsonAnswer is what the JSON API has said.
type jsonAnswer struct {
	status int
	header http.Header
	body   map[string]any
	// err says that there was no answer.
	err error
}

// said is the message of a refusal, with its status.
func (a *jsonAnswer) said() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprint(a.status, " ", a.body["message"])
}

// ask calls the JSON API from a connection of its own, which it closes.
func (s *served) ask(ctx context.Context, path, body string, header ...string) *jsonAnswer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Addr+path, strings.NewReader(body))
	if err != nil {
		return &jsonAnswer{err: err}
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return &jsonAnswer{err: err}
	}
	defer resp.Body.Close()
	a := &jsonAnswer{status: resp.StatusCode, header: resp.Header}
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &a.body)
	}
	a.err = err
	return a
}

// number reads a number that the JSON API has written as a string.
func (a *jsonAnswer) number(tb testing.TB, name string) int64 {
	tb.Helper()
	text, ok := a.body[name].(string)
	n, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		tb.Fatalf("%s in %d %v, %v", name, a.status, a.body, a.err)
	}
	return n
}

// token is the fencing token that Lock has answered with.
func (a *jsonAnswer) token(tb testing.TB) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(a.header.Get("Grpc-Metadata-Latchkey-Fencing-Token"), 10, 64)
	if err != nil || a.status != http.StatusOK {
		tb.Fatalf("locked: %d %v, %v", a.status, a.body, err)
	}
	return n
}

func lockBody(lease int64) string {
	return fmt.Sprintf(`{"name":%q,"lease":"%d"}`, base64.StdEncoding.EncodeToString([]byte("l")), lease)
}

// lockHTTP takes the lock.
func (s *served) lockHTTP(lease int64, header ...string) *jsonAnswer {
	return s.ask(s.Bound(), "/v3/lock/lock", lockBody(lease), header...)
}

// lockingHTTP asks for the lock in the background and returns when its key is in
// the queue.
func (s *served) lockingHTTP(ctx context.Context, lease int64, header ...string) <-chan *jsonAnswer {
	s.T.Helper()
	done := make(chan *jsonAnswer, 1)
	go func() { done <- s.ask(ctx, "/v3/lock/lock", lockBody(lease), header...) }()
	s.await(fmt.Sprintf("l/%x", lease), 1)
	return done
}

// renewHTTP renews a lease and returns the time that it now has; 0 says that it is
// gone.
func (s *served) renewHTTP(lease int64) int64 {
	s.T.Helper()
	a := s.ask(s.Bound(), "/v3/lease/keepalive", fmt.Sprintf(`{"ID":"%d"}`, lease))
	result, ok := a.body["result"].(map[string]any)
	if !ok || a.err != nil {
		s.T.Fatalf("renew: %s", a.said())
	}
	if result["TTL"] == nil {
		return 0
	}
	return (&jsonAnswer{body: result}).number(s.T, "TTL")
}

// heard returns the answer to a call in the background.
func heard(tb testing.TB, what string, limit time.Duration, done <-chan *jsonAnswer) *jsonAnswer {
	tb.Helper()
	select {
	case a := <-done:
		return a
	case <-time.After(limit):
		tb.Fatalf("%s: not after %v", what, limit)
		return nil
	}
}

// Who waits by HTTP hears at once that its own session is gone (19597, 12547).
func TestWaiterByHTTPHearsOfItsLostSession(t *testing.T) {
	s := serve(t)
	a, b := s.Grant(0, 60), s.Grant(0, 60)
	s.lockHTTP(a).token(t)
	waiter := s.lockingHTTP(s.Bound(), b)
	s.Revoke(b)
	if got := heard(t, "the waiter without a session", time.Second, waiter); got.said() != "500 mutex: session is expired" {
		t.Errorf("the waiter without a session: %s", got.said())
	}
}

// Who gives up waiting by HTTP is gone from the queue: by the deadline that it
// names, by going away, and also if the server stands still meanwhile (10111, 18082).
func TestGivingUpByHTTP(t *testing.T) {
	for _, way := range []string{"deadline", "gone", "frozen"} {
		t.Run(way, func(t *testing.T) {
			s := serve(t)
			a, b, c := s.Grant(0, 60), s.Grant(0, 60), s.Grant(0, 60)
			s.lockHTTP(a).token(t)
			ctx, giveUp := context.WithCancel(s.Bound())
			defer giveUp()
			var header []string
			if way == "deadline" {
				header = []string{"Grpc-Timeout", "500m"}
			}
			second := s.lockingHTTP(ctx, b, header...)
			third := s.lockingHTTP(s.Bound(), c)
			switch way {
			case "gone":
				giveUp()
			case "frozen":
				harness.Must(t, "stop", s.Cmd.Process.Signal(syscall.SIGSTOP))
				giveUp()
			}
			got := heard(t, "the second", harness.Promptly, second)
			// Both sides of the gateway see the deadline: the text is that of the first.
			timedOut := got.said() == "504 context deadline exceeded" ||
				got.said() == "504 stream terminated by RST_STREAM with error code: CANCEL"
			if way == "deadline" && !timedOut || way != "deadline" && got.err == nil {
				t.Errorf("the second: %s", got.said())
			}
			if way == "frozen" {
				harness.Must(t, "go on", s.Cmd.Process.Signal(syscall.SIGCONT))
			}
			harness.InTime(t, "leaving the queue", harness.Promptly, func() { s.await(fmt.Sprintf("l/%x", b), 0) })
			harness.Still(t, "the third has the lock of the first", third)
			s.Revoke(a)
			heard(t, "the third", harness.Promptly, third).token(t)
		})
	}
}

// A lock's time to live by HTTP is the one that was asked for, from the last
// renewal on, and one of no time is answered with what it was given instead
// (hashicorp/consul 1172, 4508).
func TestTimeToLiveByHTTP(t *testing.T) {
	s := serve(t)
	ttl := int64(harness.Sized(3, 5))
	granted := s.ask(s.Bound(), "/v3/lease/grant", fmt.Sprintf(`{"TTL":%d}`, ttl))
	if got := granted.number(t, "TTL"); got != ttl {
		t.Errorf("granted %d s, want %d", got, ttl)
	}
	lease := granted.number(t, "ID")
	first := s.lockHTTP(lease).token(t)
	second := s.lockingHTTP(s.Bound(), s.Grant(0, 60))
	harness.Still(t, "a second holder", second)
	asked := time.Now()
	if got := s.renewHTTP(lease); got != ttl {
		t.Errorf("renewed to %d s, want %d", got, ttl)
	}
	renewed := time.Now()
	next := heard(t, "the second holder", harness.LongWait, second).token(t)
	if whole := time.Duration(ttl) * time.Second; time.Since(asked) < whole || time.Since(renewed) > whole+harness.Promptly {
		t.Errorf("free %v after the renewal, want %v", time.Since(renewed), whole)
	}
	if next <= first {
		t.Errorf("token %d after %d", next, first)
	}

	none := s.ask(s.Bound(), "/v3/lease/grant", `{"TTL":0,"ID":0}`)
	least := none.number(t, "TTL")
	info := s.TimeToLive(none.number(t, "ID"))
	if least <= 0 || info.GrantedTTL != least {
		t.Errorf("asked for no time, told %d s, have %v", least, info)
	}
}

// A lock taken by HTTP is there after the connection that took it, for as long as
// it is renewed over others, and who has it twice has it by the same key and token.
// The next renewal tells that it is lost (vitessio/vitess 11794, 11364, 7444).
func TestLockByHTTPOutlivesItsConnection(t *testing.T) {
	s := serve(t)
	ttl := int64(harness.Sized(2, 10))
	lease := s.Grant(0, ttl)
	first := s.lockHTTP(lease)
	token := first.token(t)
	other := s.lockingHTTP(s.Bound(), s.Grant(0, 60))
	renewal := time.NewTicker(time.Duration(ttl) * time.Second / 3)
	defer renewal.Stop()
	for range harness.Sized(6, 18) {
		<-renewal.C
		if got := s.renewHTTP(lease); got != ttl {
			t.Fatalf("renewed to %d s, want %d", got, ttl)
		}
	}
	again := s.lockHTTP(lease)
	if got := again.token(t); got != token || again.body["key"] != first.body["key"] {
		t.Errorf("locked again: %v by %d, want %v by %d", again.body["key"], got, first.body["key"], token)
	}
	harness.Still(t, "a second holder", other)
	s.Revoke(lease)
	if got := s.renewHTTP(lease); got != 0 {
		t.Errorf("a lost lease has %d s", got)
	}
	heard(t, "the second holder", harness.Promptly, other).token(t)
}

// The limits of requests hold for JSON too, where the connection survives as well,
// and its answers have none (apache/datafusion-ballista#416).
func TestSizeLimitsByJSON(t *testing.T) {
	s := serve(t)
	c := newJSONClient(t, s.Addr)
	const kib = 1 << 10
	putBody := func(n int) string {
		return fmt.Sprintf(`{"key":"aw==","value":%q}`, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("v"), n)))
	}
	c.ok("/v3/kv/put", putBody(1434*kib), "")
	status, refusal := c.post("/v3/kv/put", putBody(1638*kib), "")
	if status != http.StatusBadRequest || refusal["message"] != "etcdserver: request is too large" {
		t.Errorf("1.6 MiB: %d %v", status, refusal)
	}
	if got := s.Get("k"); len(got) != 1434*kib {
		t.Errorf("%d bytes are left", len(got))
	}
	const keys = 5000
	for first := 0; first < keys; first += 100 {
		txn := &pb.TxnRequest{}
		for i := first; i < first+100; i++ {
			txn.Success = append(txn.Success, harness.OpPut(fmt.Sprintf("many/%d", i), strings.Repeat("v", 1000)))
		}
		s.Txn(txn)
	}
	all := fmt.Sprintf(`{"key":%q,"range_end":%q}`,
		base64.StdEncoding.EncodeToString([]byte("many/")), base64.StdEncoding.EncodeToString([]byte("many0")))
	kvs, ok := c.ok("/v3/kv/range", all, "")["kvs"].([]any)
	if !ok || len(kvs) != keys {
		t.Errorf("%d keys, want %d", len(kvs), keys)
	}
	if !c.reused {
		t.Error("the connection was not kept")
	}
}
