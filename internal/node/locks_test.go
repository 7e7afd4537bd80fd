package node

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// object is an answer of the lock API.
type object map[string]any

// num returns a number in an answer.
func (o object) num(name string) int64 {
	n, _ := o[name].(json.Number)
	i, _ := n.Int64()
	return i
}

// in returns the i-th object of a list in an answer, an empty one if there is none.
func (o object) in(name string, i int) object {
	list, _ := o[name].([]any)
	if i >= len(list) {
		return object{}
	}
	found, _ := list[i].(map[string]any)
	return found
}

// lockUser uses the lock API of nodes by HTTP.
type lockUser struct {
	*testing.T

	c *cluster
	// asked counts the requests: each goes to the next node.
	asked int
}

func (u *lockUser) next() string {
	u.asked++
	return "http://" + u.c.machines[u.asked%len(u.c.machines)].node.Addrs()[0].String()
}

// try makes a request of the next node.
func (u *lockUser) try(ctx context.Context, method, path, body string) (int, object, error) {
	return send(ctx, "", method, u.next()+"/api/v1/"+path, body)
}

// send makes a request, with a token if it is not empty.
func send(ctx context.Context, token, method, url, body string) (int, object, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer := object{}
	decoder := json.NewDecoder(resp.Body)
	decoder.UseNumber()
	err = decoder.Decode(&answer)
	return resp.StatusCode, answer, err
}

// call makes a request of the next node, which must answer with a status.
func (u *lockUser) call(want int, method, path, body string) object {
	u.Helper()
	code, answer, err := u.try(u.Context(), method, path, body)
	check(u.T, err)
	if code != want {
		u.Fatalf("%s %s %s: %d %v, want %d", method, path, body, code, answer, want)
	}
	return answer
}

// events reads the events of a watch, as "kind client reason".
func (u *lockUser) events(path string) (next func() string) {
	u.Helper()
	r, err := http.NewRequestWithContext(u.Context(), http.MethodGet, u.next()+"/api/v1/"+path, http.NoBody)
	check(u.T, err)
	resp, err := http.DefaultClient.Do(r)
	check(u.T, err)
	u.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		u.Fatalf("watch: %d %s", resp.StatusCode, kind)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() string {
		u.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				ev := struct {
					Event  string `json:"event"`
					Client string `json:"client_id"`
					Reason string `json:"reason"`
				}{}
				check(u.T, json.Unmarshal([]byte(data), &ev))
				return strings.TrimSpace(ev.Event + " " + ev.Client + " " + ev.Reason)
			}
		}
		u.Fatalf("the watch has ended: %v", lines.Err())
		return ""
	}
}

// lockLayout is a cluster that locks are tried on.
type lockLayout struct {
	nodes  int
	splits string
}

// lockLayouts are one node and three, with one shard and with four; the last alone where tests
// are short.
func lockLayouts() []lockLayout {
	all := []lockLayout{{1, ""}, {1, "g,n,t"}, {3, ""}, {3, "g,n,t"}}
	if testing.Short() {
		return all[3:]
	}
	return all
}

// Every call of the lock API has its good and its bad answers on whichever node, over one shard
// and several.
func TestLocksOverHTTP(t *testing.T) {
	for _, l := range lockLayouts() {
		t.Run(fmt.Sprintf("nodes=%d,splits=%s", l.nodes, l.splits), func(t *testing.T) {
			t.Parallel() // most of the time it waits for leases to end
			c := newCluster(t, l.nodes, "--initial-splits", l.splits)
			c.start(c.machines...)
			u := &lockUser{T: t, c: c}
			for _, name := range []string{"a", "stock/p 1", "/z"} {
				u.rows(name)
			}
			u.several()
			u.dies()
			u.sessions()
			u.listed()
		})
	}
}

// rows makes the calls on one lock.
func (u *lockUser) rows(name string) {
	u.Helper()
	const post, get = http.MethodPost, http.MethodGet
	path := "locks/" + strings.ReplaceAll(strings.ReplaceAll(name, "/", "%2F"), " ", "%20")
	ask := func(client, more string) string {
		return fmt.Sprintf(`{"lock_key":%q,"client_id":%q,"lease_time_ms":60000%s}`, name, client, more)
	}
	held := func(client string, token int64) string {
		return fmt.Sprintf(`{"lock_key":%q,"client_id":%q,"fencing_token":%d}`, name, client, token)
	}
	next := u.events(path + "/watch")
	expect := func(want ...string) {
		u.Helper()
		for _, want := range want {
			if got := next(); got != want {
				u.Fatalf("%s: event %q, want %q", name, got, want)
			}
		}
	}
	a := u.call(200, post, "locks/acquire", ask("a", `,"request_id":"1","metadata":"m"`))
	token := a.num("fencing_token")
	if a["acquired"] != true || a["lock_key"] != name || a["client_id"] != "a" || token <= 0 ||
		a.num("expires_at_epoch_ms") < time.Now().UnixMilli() || a.num("lease_time_ms") != 60000 || a.num("holds") != 1 {
		u.Errorf("acquired: %v", a)
	}
	expect("queued a", "granted a")
	if again := u.call(200, post, "locks/acquire", ask("a", `,"request_id":"1"`)); again.num("fencing_token") != token || again.num("holds") != 1 {
		u.Errorf("acquired again: %v, first %v", again, a)
	}
	late := u.call(409, post, "locks/acquire", ask("b", `,"block_time_ms":1`))
	if late["acquired"] != false || late.num("position") != 1 || late.in("holders", 0).num("fencing_token") != token ||
		late.in("holders", 0).num("since_epoch_ms") == 0 {
		u.Errorf("not acquired: %v", late)
	}
	expect("queued b", "left b")

	if v := u.call(200, post, "locks/validate", fmt.Sprintf(`{"lock_key":%q,"fencing_token":%d}`, name, token)); v["valid"] != true {
		u.Errorf("validated: %v", v)
	}
	if v := u.call(200, post, "locks/validate", fmt.Sprintf(`{"lock_key":%q,"fencing_token":1}`, name)); v["valid"] != false ||
		v.in("holders", 0).num("fencing_token") != token {
		u.Errorf("validated: %v", v)
	}
	renewed := u.call(200, post, "locks/renew", strings.TrimSuffix(held("a", token), "}")+`,"extend_time_ms":120000}`)
	if renewed["renewed"] != true || renewed.num("new_expires_at") < time.Now().Add(100*time.Second).UnixMilli() {
		u.Errorf("renewed: %v", renewed)
	}
	u.call(403, post, "locks/renew", held("b", token))
	u.call(403, post, "locks/release", held("b", token))
	u.call(400, post, "locks/renew", held("a", -1))

	waiting := make(chan object, 1)
	go func() {
		_, answer, err := u.try(u.Context(), post, "locks/acquire", ask("w", `,"block_time_ms":600000`))
		if err != nil {
			u.Error(err)
		}
		waiting <- answer
	}()
	expect("queued w")
	// A caller that goes away leaves at once.
	ctx, cancel := context.WithCancel(u.Context())
	gone := make(chan error, 1)
	url := u.next()
	go func() {
		r, err := http.NewRequestWithContext(ctx, post, url+"/api/v1/locks/acquire", strings.NewReader(ask("gone", `,"block_time_ms":600000`)))
		if err == nil {
			_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is no answer
		}
		gone <- err
	}()
	expect("queued gone")
	shown := u.call(200, get, path, "")
	if shown["lock_key"] != name || shown.in("holders", 0).num("remaining_ms") < 100000 || shown.in("holders", 0)["metadata"] != "m" ||
		shown.in("waiters", 0)["client_id"] != "w" || shown.in("waiters", 1)["client_id"] != "gone" {
		u.Errorf("shown: %v", shown)
	}
	cancel()
	if err := <-gone; err == nil {
		u.Error("an answer to who has gone")
	}
	expect("left gone")
	for range 2 {
		if r := u.call(200, post, "locks/release", held("a", token)); r["released"] != true {
			u.Errorf("released: %v", r)
		}
	}
	expect("released a", "granted w")
	w := <-waiting
	if w["acquired"] != true || w.num("fencing_token") <= token {
		u.Errorf("acquired after waiting: %v", w)
	}
	u.call(403, post, "locks/renew", held("a", token))
	forced := fmt.Sprintf(`{"lock_key":%q,"fencing_token":%d,"reason":"stuck"}`, name, w.num("fencing_token"))
	if r := u.call(200, post, "locks/force-release", forced); r["released"] != true {
		u.Errorf("released by force: %v", r)
	}
	expect("released w stuck")
	u.call(403, post, "locks/force-release", forced)
	again := u.events(fmt.Sprintf("%s/watch?from=%d", path, w.num("fencing_token")))
	if got := again(); got != "queued w" {
		u.Errorf("watched from there: %q", got)
	}
}

// dies has a holder not renew its lock: a watch tells that from a release.
func (u *lockUser) dies() {
	u.Helper()
	next := u.events("locks/d/watch")
	u.call(200, http.MethodPost, "locks/acquire", `{"lock_key":"d","client_id":"a","lease_time_ms":3000}`)
	for _, want := range []string{"queued a", "granted a", "expired a"} {
		if got := next(); got != want {
			u.Errorf("event %q, want %q", got, want)
		}
	}
}

// several acquires locks together, which lie on different shards.
func (u *lockUser) several() {
	u.Helper()
	const post = http.MethodPost
	got := u.call(200, post, "locks/acquire", `{"keys":["p","b","t"],"client_id":"a","lease_time_ms":60000}`)
	if got["acquired"] != true || got.in("grants", 0)["lock_key"] != "b" || got.in("grants", 2)["lock_key"] != "t" {
		u.Errorf("several: %v", got)
	}
	late := u.call(409, post, "locks/acquire", `{"keys":["c","t"],"client_id":"b","lease_time_ms":60000}`)
	if late["lock_key"] != "t" {
		u.Errorf("several: %v", late)
	}
	if free := u.call(200, http.MethodGet, "locks/c", ""); len(free["holders"].([]any)) != 0 {
		u.Errorf("one of several is left: %v", free)
	}
	for i := range 3 {
		g := got.in("grants", i)
		u.call(200, post, "locks/release", fmt.Sprintf(`{"lock_key":%q,"client_id":"a","fencing_token":%d}`, g["lock_key"], g.num("fencing_token")))
	}
}

func (u *lockUser) sessions() {
	u.Helper()
	const post = http.MethodPost
	s := u.call(200, post, "sessions", `{"client_id":"a","ttl_ms":60000}`)
	id := fmt.Sprintf(`"session_id":%q`, s["session_id"])
	if s["client_id"] != "a" || s.num("ttl_ms") != 60000 || s.num("expires_at_epoch_ms") < time.Now().UnixMilli() {
		u.Errorf("session: %v", s)
	}
	for _, name := range []string{"a", "o"} {
		got := u.call(200, post, "locks/acquire", fmt.Sprintf(`{"lock_key":%q,"client_id":"a",%s,"mode":"shared"}`, name, id))
		if got["session_id"] != s["session_id"] {
			u.Errorf("by a session: %v", got)
		}
	}
	u.call(200, post, "locks/acquire", `{"lock_key":"o","client_id":"b","lease_time_ms":60000,"mode":"shared"}`)
	next := u.events("locks/a/watch")
	for _, want := range []string{"queued a", "granted a"} {
		if got := next(); got != want {
			u.Errorf("event %q, want %q", got, want)
		}
	}
	u.call(200, post, "sessions/renew", "{"+id+"}")
	for range 2 {
		u.call(200, post, "sessions/close", "{"+id+"}")
	}
	u.call(403, post, "sessions/renew", "{"+id+"}")
	u.call(403, post, "locks/acquire", `{"lock_key":"a","client_id":"a",`+id+`}`)
	if o := u.call(200, http.MethodGet, "locks/o", ""); o.in("holders", 0)["client_id"] != "b" {
		u.Errorf("after the end of a session: %v", o)
	}
}

func (u *lockUser) listed() {
	u.Helper()
	const post, get = http.MethodPost, http.MethodGet
	for _, name := range []string{"list/a", "list/u", "list/o"} {
		for client := range 2 {
			u.call([]int{200, 409}[client], post, "locks/acquire",
				fmt.Sprintf(`{"lock_key":%q,"client_id":"%d","lease_time_ms":60000}`, name, client))
		}
	}
	var names []any
	cursor := ""
	for {
		page := u.call(200, get, "locks?prefix=list/&limit=2"+cursor, "")
		for i := range page["locks"].([]any) {
			names = append(names, page.in("locks", i)["lock_key"])
		}
		more, ok := page["cursor"].(string)
		if !ok {
			break
		}
		cursor = "&cursor=" + more
	}
	if fmt.Sprint(names) != "[list/a list/o list/u]" {
		u.Errorf("listed: %v", names)
	}
	if busy := u.call(200, get, "locks?prefix=list/&sort=waiters", ""); busy.in("locks", 0).in("holders", 0)["client_id"] != "0" {
		u.Errorf("listed: %v", busy)
	}
	u.call(400, get, "locks?limit=0", "")
	u.call(400, get, "locks?sort=age", "")
	u.call(400, get, "locks?cursor=!", "")
}

// Nodes without a majority say so.
func TestLocksWithoutAMajority(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3)
	c.start(c.machines...)
	u := &lockUser{T: t, c: c}
	u.call(200, http.MethodPost, "locks/acquire", `{"lock_key":"a","client_id":"a","lease_time_ms":600000}`)
	c.stop(c.machines[1:]...)
	c.machines = c.machines[:1]
	u.call(503, http.MethodGet, "locks/a", "")
	u.call(503, http.MethodPost, "locks/acquire", `{"lock_key":"a","client_id":"b","lease_time_ms":600000}`)
}

// Users have the rights to the keys under a lock's name that their roles have.
func TestLockRights(t *testing.T) {
	c := newCluster(t, 1)
	c.start(c.machines...)
	u := &lockUser{T: t, c: c}
	url := u.next()
	send := func(token, method, path, body string) (int, object) {
		t.Helper()
		code, answer, err := send(t.Context(), token, method, url+path, body)
		check(t, err)
		return code, answer
	}
	permission := func(kind, name string) string {
		b64 := func(key string) string { return base64.StdEncoding.EncodeToString([]byte(key)) }
		return fmt.Sprintf(`{"name":"own","perm":{"permType":%q,"key":%q,"range_end":%q}}`, kind, b64(name+"/"), b64(name+"0"))
	}
	for _, step := range [][2]string{
		{"user/add", `{"name":"root","password":"root"}`},
		{"user/grant", `{"user":"root","role":"root"}`},
		{"role/add", `{"name":"own"}`},
		{"role/grant", permission("READWRITE", "mine")},
		{"role/grant", permission("READ", "seen")},
		{"user/add", `{"name":"u","password":"u"}`},
		{"user/grant", `{"user":"u","role":"own"}`},
		{"enable", `{}`},
	} {
		if status, answer := send("", http.MethodPost, "/v3/auth/"+step[0], step[1]); status != http.StatusOK {
			t.Fatalf("%s: %d %v", step, status, answer)
		}
	}
	login := func(user string) string {
		t.Helper()
		_, answer := send("", http.MethodPost, "/v3/auth/authenticate", fmt.Sprintf(`{"name":%q,"password":%q}`, user, user))
		return fmt.Sprint(answer["token"])
	}
	root, own := login("root"), login("u")
	acquire := func(name string) string {
		return fmt.Sprintf(`{"lock_key":%q,"client_id":"a","lease_time_ms":60000}`, name)
	}
	const post, get = http.MethodPost, http.MethodGet
	for _, tc := range []struct {
		token, method, path, body string
		want                      int
	}{
		{"", post, "locks/acquire", acquire("mine"), 401},
		{"no.1", post, "locks/acquire", acquire("mine"), 401},
		{"", get, "locks/mine", "", 401},
		{"", get, "locks", "", 401},
		{"", get, "locks/mine/watch", "", 401},
		{"", post, "sessions", `{"ttl_ms":10000}`, 401},
		{own, post, "locks/acquire", acquire("mine"), 200},
		{"Bearer " + own, get, "locks/mine", "", 200},
		{own, get, "locks?prefix=mine/", "", 200},
		{own, get, "locks", "", 403},
		{own, get, "locks/seen", "", 200},
		{own, post, "locks/acquire", acquire("seen"), 403},
		{own, get, "locks/other", "", 403},
		{own, get, "locks/other/watch", "", 403},
		{own, post, "locks/acquire", acquire("other"), 403},
		{root, post, "locks/acquire", acquire("seen"), 200},
	} {
		if status, answer := send(tc.token, tc.method, "/api/v1/"+tc.path, tc.body); status != tc.want {
			t.Errorf("%s %s %s by %q: %d %v, want %d", tc.method, tc.path, tc.body, tc.token, status, answer, tc.want)
		}
	}
	_, held := send(own, get, "/api/v1/locks/seen", "")
	force := fmt.Sprintf(`{"lock_key":"seen","fencing_token":%v,"reason":"r"}`, held.in("holders", 0)["fencing_token"])
	for _, tc := range []struct {
		token string
		want  int
	}{{own, 403}, {root, 200}} {
		if status, answer := send(tc.token, post, "/api/v1/locks/force-release", force); status != tc.want {
			t.Errorf("force by %q: %d %v, want %d", tc.token, status, answer, tc.want)
		}
	}
}

// The gRPC form has the same answers, tells positions, and ends its streams with the server.
func TestLocksOverGRPC(t *testing.T) {
	for _, l := range lockLayouts() {
		t.Run(fmt.Sprintf("nodes=%d,splits=%s", l.nodes, l.splits), func(t *testing.T) {
			c := newCluster(t, l.nodes, "--initial-splits", l.splits)
			c.start(c.machines...)
			var users []latchkeyv1.LocksClient
			for _, m := range c.machines {
				conn, err := grpc.NewClient(m.node.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
				check(t, err)
				defer conn.Close()
				users = append(users, latchkeyv1.NewLocksClient(conn))
			}
			testLocksOverGRPC(t, c, users[0], users[len(users)-1])
		})
	}
}

func testLocksOverGRPC(t *testing.T, c *cluster, one, other latchkeyv1.LocksClient) {
	t.Helper()
	ctx := t.Context()
	got, err := one.Acquire(ctx, &latchkeyv1.AcquireRequest{LockKey: "l", ClientId: "a", LeaseTimeMs: 600000})
	check(t, err)
	token := got.GetGrants()[0].GetFencingToken()
	stream, err := other.AcquireStream(ctx, &latchkeyv1.AcquireRequest{LockKey: "l", ClientId: "b", LeaseTimeMs: 600000, BlockTimeMs: 600000})
	check(t, err)
	step, err := stream.Recv()
	check(t, err)
	if p := step.GetPosition(); p.GetLockKey() != "l" || p.GetPosition() != 1 || p.GetRevision() == 0 {
		t.Errorf("position %v", step)
	}
	_, err = other.Release(ctx, &latchkeyv1.ReleaseRequest{LockKey: "l", ClientId: "b", FencingToken: token})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = other.Renew(ctx, &latchkeyv1.RenewRequest{LockKey: "l", ClientId: "b", FencingToken: token})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = other.RenewSession(ctx, &latchkeyv1.RenewSessionRequest{SessionId: 7})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = one.Acquire(ctx, &latchkeyv1.AcquireRequest{ClientId: "a", LeaseTimeMs: 1})
	wantCode(t, err, codes.InvalidArgument)
	_, err = other.Release(ctx, &latchkeyv1.ReleaseRequest{LockKey: "l", ClientId: "a", FencingToken: token})
	check(t, err)
	for step.GetResponse() == nil {
		step, err = stream.Recv()
		check(t, err)
	}
	if g := step.GetResponse().GetGrants(); len(g) != 1 || g[0].GetFencingToken() <= token {
		t.Errorf("granted %v", step)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v", err)
	}
	watch, err := one.Watch(ctx, &latchkeyv1.WatchRequest{LockKey: "l"})
	check(t, err)
	there, err := watch.Recv()
	check(t, err)
	if ev := there.GetEvents(); len(ev) != 2 || ev[0].GetKind() != latchkeyv1.LockEvent_QUEUED || ev[1].GetKind() != latchkeyv1.LockEvent_GRANTED {
		t.Errorf("watched %v", there)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := one.Acquire(ctx, &latchkeyv1.AcquireRequest{LockKey: "l", ClientId: "c", LeaseTimeMs: 600000, BlockTimeMs: 600000})
		waiting <- err
	}()
	_, err = watch.Recv()
	check(t, err)
	c.stop(c.machines...)
	wantCode(t, <-waiting, codes.Unavailable)
	for err == nil {
		_, err = watch.Recv()
	}
	wantCode(t, err, codes.Unavailable)
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %v", err, want)
	}
}
