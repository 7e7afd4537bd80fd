package node

import (
	"context"
	"encoding/base64"
	"fmt"
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

// soon is two seconds on a machine that has much else to do.
const soon = 20 * time.Second

// Of two clients that wait for each other, in calls to different nodes and for locks of different
// shards, the younger one's call fails with who waits for what; the other goes on.
func TestDeadlockOverNodes(t *testing.T) {
	for _, l := range lockLayouts() {
		t.Run(fmt.Sprintf("nodes=%d,splits=%s", l.nodes, l.splits), func(t *testing.T) {
			t.Parallel() // most of the time it waits
			c := newCluster(t, l.nodes, "--initial-splits", l.splits)
			c.start(c.machines...)
			deadlockOverGRPC(t, c)
			deadlockOverHTTP(t, c)
		})
	}
}

// heldBy has a client get a lock and returns the token.
func heldBy(t *testing.T, locks latchkeyv1.LocksClient, client, name string) int64 {
	t.Helper()
	got, err := locks.Acquire(t.Context(), &latchkeyv1.AcquireRequest{LockKey: name, ClientId: client, LeaseTimeMs: 600000})
	check(t, err)
	if !got.GetAcquired() {
		t.Fatalf("%s does not get %s: %v", client, name, got)
	}
	return got.GetGrants()[0].GetFencingToken()
}

func deadlockOverGRPC(t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func(m *machine) latchkeyv1.LocksClient {
		conn, err := grpc.NewClient(m.node.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		t.Cleanup(func() { conn.Close() })
		return latchkeyv1.NewLocksClient(conn)
	}
	one, other := dial(c.machines[0]), dial(c.machines[len(c.machines)-1])
	first := heldBy(t, one, "a", "first")
	heldBy(t, other, "b", "second")
	older := make(chan *latchkeyv1.AcquireResponse, 1)
	go func() {
		resp, err := other.Acquire(ctx, &latchkeyv1.AcquireRequest{LockKey: "first", ClientId: "b", LeaseTimeMs: 600000, BlockTimeMs: 600000})
		if err != nil {
			t.Error(err)
		}
		older <- resp
	}()
	until(t, "a waiter", func() bool {
		l, err := one.Get(ctx, &latchkeyv1.GetRequest{LockKey: "first"})
		return err == nil && len(l.GetWaiters()) == 1
	})
	began := time.Now()
	stream, err := one.AcquireStream(ctx, &latchkeyv1.AcquireRequest{LockKey: "second", ClientId: "a", LeaseTimeMs: 600000, BlockTimeMs: 600000})
	check(t, err)
	for err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.Aborted)
	if took := time.Since(began); took > soon {
		t.Errorf("the deadlock was over after %v", took)
	}
	var cycle []*latchkeyv1.WaitingClient
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*latchkeyv1.Deadlock); ok {
			cycle = d.GetCycle()
		}
	}
	if len(cycle) != 2 || cycle[0].GetClientId() != "a" || cycle[0].GetLockKey() != "second" || cycle[1].GetClientId() != "b" ||
		cycle[1].GetLockKey() != "first" || cycle[0].GetFencingToken() <= cycle[1].GetFencingToken() || cycle[1].GetSinceEpochMs() == 0 {
		t.Errorf("told %v", err)
	}
	left, err := other.Get(ctx, &latchkeyv1.GetRequest{LockKey: "second"})
	check(t, err)
	if len(left.GetWaiters()) > 0 {
		t.Errorf("left in the queue: %v", left)
	}
	_, err = one.Release(ctx, &latchkeyv1.ReleaseRequest{LockKey: "first", ClientId: "a", FencingToken: first})
	check(t, err)
	if resp := <-older; !resp.GetAcquired() {
		t.Errorf("the older call: %v", resp)
	}
}

func deadlockOverHTTP(t *testing.T, c *cluster) {
	t.Helper()
	u := &lockUser{T: t, c: c}
	ask := func(client, name, more string) string {
		return fmt.Sprintf(`{"lock_key":%q,"client_id":%q,"lease_time_ms":600000%s}`, name, client, more)
	}
	const post, blocking = http.MethodPost, `,"block_time_ms":600000`
	u.call(200, post, "locks/acquire", ask("a", "third", ""))
	u.call(200, post, "locks/acquire", ask("b", "a lock", ""))
	u.call(200, post, "locks/acquire", ask("c", "o", ""))
	waiting, stop := context.WithCancel(t.Context())
	defer stop()
	older := make(chan string, 2)
	for client, name := range map[string]string{"b": "third", "c": "a lock"} {
		go func() {
			code, answer, err := send(waiting, "", post, u.at(1)+"/api/v1/locks/acquire", ask(client, name, blocking))
			older <- fmt.Sprint(code, answer, err)
		}()
		until(t, "a waiter", func() bool {
			return len(u.call(200, http.MethodGet, "locks/"+strings.ReplaceAll(name, " ", "%20"), "")["waiters"].([]any)) == 1
		})
	}
	began := time.Now()
	code, answer, err := send(t.Context(), "", post, u.at(0)+"/api/v1/locks/acquire", ask("a", "o", blocking))
	check(t, err)
	if took := time.Since(began); took > soon {
		t.Errorf("the deadlock was over after %v", took)
	}
	if code != http.StatusConflict || answer["error"] != "latchkey: deadlock: 3 clients wait for each other" || answer["acquired"] != nil {
		t.Errorf("%d %v", code, answer)
	}
	for i, want := range [][2]string{{"a", "o"}, {"c", "a lock"}, {"b", "third"}} {
		w := answer.in("deadlock", i)
		if w["client_id"] != want[0] || w["lock_key"] != want[1] || w.num("fencing_token") == 0 || w.num("since_epoch_ms") == 0 || w["waited_ms"] == nil {
			t.Errorf("told %v, want %v", w, want)
		}
	}
	select {
	case answer := <-older:
		t.Errorf("another call ended: %v", answer)
	default:
	}
}

// at returns what paths begin with at a node.
func (u *lockUser) at(node int) string {
	return "http://" + u.c.machines[node%len(u.c.machines)].node.Addrs()[0].String()
}

// Who has no right to a lock learns neither its name nor whose it is, and its clients are
// protected like all others: the calls of users who know nothing of each other may be in one deadlock.
func TestDeadlockRights(t *testing.T) {
	c := newCluster(t, 3, "--initial-splits", "g,n,t")
	c.start(c.machines...)
	u := &lockUser{T: t, c: c}
	post := func(ctx context.Context, node int, token, path, body string) (int, object, error) {
		return send(ctx, token, http.MethodPost, u.at(node)+path, body)
	}
	key := func(name string) string { return base64.StdEncoding.EncodeToString([]byte(name)) }
	steps := [][2]string{{"user/add", `{"name":"root","password":"root"}`}, {"user/grant", `{"user":"root","role":"root"}`}}
	for user, locks := range map[string][]string{"u": {"mine", "ours"}, "v": {"secret", "mine"}, "w": {"ours", "secret"}} {
		steps = append(steps, [2]string{"role/add", fmt.Sprintf(`{"name":%q}`, user)},
			[2]string{"user/add", fmt.Sprintf(`{"name":%q,"password":%q}`, user, user)}, [2]string{"user/grant", fmt.Sprintf(`{"user":%q,"role":%q}`, user, user)})
		for _, name := range locks {
			steps = append(steps, [2]string{"role/grant", fmt.Sprintf(
				`{"name":%q,"perm":{"permType":"READWRITE","key":%q,"range_end":%q}}`, user, key(name+"/"), key(name+"0"))})
		}
	}
	for _, step := range append(steps, [2]string{"enable", `{}`}) {
		if code, answer, err := post(t.Context(), 0, "", "/v3/auth/"+step[0], step[1]); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %v %v", step, code, answer, err)
		}
	}
	acquire := func(ctx context.Context, node int, user, name string, block int) (int, object, error) {
		_, login, err := post(ctx, node, "", "/v3/auth/authenticate", fmt.Sprintf(`{"name":%q,"password":%q}`, user, user))
		if err != nil {
			return 0, nil, err
		}
		return post(ctx, node, fmt.Sprint(login["token"]), "/api/v1/locks/acquire",
			fmt.Sprintf(`{"lock_key":%q,"client_id":"client of %s","lease_time_ms":600000,"block_time_ms":%d}`, name, user, block))
	}
	// u has mine and waits for ours, which w has; w waits for secret, which v has; v waits for mine.
	for user, name := range map[string]string{"u": "mine", "v": "secret", "w": "ours"} {
		if code, answer, err := acquire(t.Context(), 0, user, name, 0); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %v %v", name, code, answer, err)
		}
	}
	waiting, stop := context.WithCancel(t.Context())
	defer stop()
	_, root, err := post(t.Context(), 0, "", "/v3/auth/authenticate", `{"name":"root","password":"root"}`)
	check(t, err)
	for user, name := range map[string]string{"v": "mine", "w": "secret"} {
		go func() { _, _, _ = acquire(waiting, 1, user, name, 600000) }()
		until(t, "a waiter", func() bool {
			_, l, err := send(t.Context(), fmt.Sprint(root["token"]), http.MethodGet, u.at(0)+"/api/v1/locks/"+name, "")
			waiters, _ := l["waiters"].([]any)
			return err == nil && len(waiters) == 1
		})
	}
	code, answer, err := acquire(t.Context(), 2, "u", "ours", 600000)
	check(t, err)
	if code != http.StatusConflict {
		t.Fatalf("%d %v", code, answer)
	}
	if w := answer.in("deadlock", 0); w["client_id"] != "client of u" || w["lock_key"] != "ours" {
		t.Errorf("of the caller: %v", w)
	}
	// Whose lock the caller waits for it may know, but not what that one waits for.
	if w := answer.in("deadlock", 1); w["client_id"] != "client of w" || len(w) != 1 {
		t.Errorf("of a lock that may not be read: %v", w)
	}
	if w := answer.in("deadlock", 2); w["client_id"] != "client of v" || w["lock_key"] != "mine" {
		t.Errorf("of a lock that may be read: %v", w)
	}
}
