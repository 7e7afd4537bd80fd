package cases

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
)

// jsonClient calls the JSON API over one connection.
type jsonClient struct {
	t    *testing.T
	http *http.Client
	url  string
	// reused says whether the last call went over a connection that was there.
	reused bool
}

func newJSONClient(t *testing.T, addr string) *jsonClient {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &jsonClient{t: t, http: &http.Client{Transport: transport}, url: "http://" + addr}
}

// post returns the status and the decoded answer of a call.
func (c *jsonClient) post(path, body, token string) (status int, answer map[string]any) {
	c.t.Helper()
	ctx := httptrace.WithClientTrace(c.t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { c.reused = info.Reused },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		c.t.Fatalf("%s: %d %q: %v", path, resp.StatusCode, text, err)
	}
	return resp.StatusCode, answer
}

func (c *jsonClient) ok(path, body, token string) map[string]any {
	c.t.Helper()
	status, answer := c.post(path, body, token)
	if status != http.StatusOK {
		c.t.Fatalf("%s: %d %v", path, status, answer)
	}
	return answer
}

// A bad token is answered with 401 and JSON, and the connection goes on
// (patroni/patroni 2552, 15256, 20332).
func TestGatewayBadTokenKeepsTheConnection(t *testing.T) {
	s := serve(t)
	c := newJSONClient(t, s.Addr)
	c.ok("/v3/auth/user/add", `{"name":"root","password":"secret"}`, "")
	c.ok("/v3/auth/role/add", `{"name":"root"}`, "")
	c.ok("/v3/auth/user/grant", `{"user":"root","role":"root"}`, "")
	c.ok("/v3/auth/enable", `{}`, "")
	token, ok := c.ok("/v3/auth/authenticate", `{"name":"root","password":"secret"}`, "")["token"].(string)
	if !ok {
		t.Fatal("no token")
	}
	const get = `{"key":"eA=="}`
	status, answer := c.post("/v3/kv/range", get, "none")
	if status != http.StatusUnauthorized || answer["code"] != 16.0 || answer["message"] != "etcdserver: invalid auth token" {
		t.Errorf("with a bad token: %d %v", status, answer)
	}
	for _, good := range []string{token, "Bearer " + token} {
		c.ok("/v3/kv/range", get, good)
		if !c.reused {
			t.Error("the connection was not kept")
		}
	}
	if status, answer = c.post("/v3/kv/range", get, ""); status != http.StatusBadRequest ||
		answer["message"] != "etcdserver: user name is empty" {
		t.Errorf("without a token: %d %v", status, answer)
	}
	// Lock asks with the rights of its caller.
	c.ok("/v3/lock/lock", `{"name":"bA=="}`, token)
	if status, answer = c.post("/v3/lock/lock", `{"name":"bA=="}`, ""); status != http.StatusInternalServerError ||
		answer["message"] != "etcdserver: user name is empty" {
		t.Errorf("a lock without a token: %d %v", status, answer)
	}
}
