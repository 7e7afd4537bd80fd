package clients

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/ordering"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// The packages of etcd's Go client that build on its API do their work.
func TestGoClients(t *testing.T) {
	t.Parallel()
	for _, client := range []struct {
		name string
		run  func(*testing.T, *harness.Process, *clientv3.Client)
	}{
		{"stm", stmMovesMoney},
		{"session", sessionEndsWithItsLease},
		{"leasing", leasingCaches},
		{"ordering", orderingNeverStepsBack},
		{"namespace", namespacePrefixes},
		{"naming", namingFollows},
		{"mirror", mirrorFollows},
		{"proxy", proxyServes},
	} {
		t.Run(client.name, func(t *testing.T) {
			p := harness.NewProcess(t)
			c := p.Client()
			defer c.Close()
			client.run(t, p, c)
		})
	}
}

func put(t *testing.T, kv clientv3.KV, key, value string) int64 {
	t.Helper()
	r, err := kv.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

func value(t *testing.T, kv clientv3.KV, key string) string {
	t.Helper()
	r, err := kv.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// Money moved between accounts by software transactions is neither made nor lost,
// at the levels of isolation that promise it.
func stmMovesMoney(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	for _, level := range []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads,
	} {
		account := func(i int) string { return fmt.Sprintf("stm/%d/%d", level, i%4) }
		for i := range 4 {
			put(t, c, account(i), "100")
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for n := range 10 {
					move := func(s concurrency.STM) error {
						from, err := strconv.Atoi(s.Get(account(g)))
						if err != nil {
							return err
						}
						to, err := strconv.Atoi(s.Get(account(g + 1 + n%3)))
						if err != nil {
							return err
						}
						s.Put(account(g), strconv.Itoa(from-1))
						s.Put(account(g+1+n%3), strconv.Itoa(to+1))
						return nil
					}
					if _, err := concurrency.NewSTM(c, move, concurrency.WithIsolation(level)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		sum := 0
		for i := range 4 {
			n, err := strconv.Atoi(value(t, c, account(i)))
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != 400 {
			t.Errorf("isolation %d: %d in the accounts, 400 were paid in", level, sum)
		}
	}
}

func sessionEndsWithItsLease(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	if err != nil {
		t.Fatal(err)
	}
	m := concurrency.NewMutex(s, "session/lock")
	if err := m.TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := concurrency.NewMutex(other, "session/lock").TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("a second holder: %v", err)
	}
	if _, err := c.Revoke(t.Context(), s.Lease()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(harness.LongWait):
		t.Error("the session does not hear that its lease is gone")
	}
	if err := concurrency.NewMutex(other, "session/lock").TryLock(t.Context()); err != nil {
		t.Errorf("the lock of a session that is gone: %v", err)
	}
}

// Two leasing clients see each other's writes through their caches.
func leasingCaches(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	other := p.Client()
	defer other.Close()
	a, closeA, err := leasing.NewKV(c, "leasing/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeA()
	b, closeB, err := leasing.NewKV(other, "leasing/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeB()
	for i := range 20 {
		want := strconv.Itoa(i)
		put(t, a, "shared", want)
		if got := value(t, b, "shared"); got != want {
			t.Errorf("b reads %q, a wrote %q", got, want)
		}
		want += "b"
		put(t, b, "shared", want)
		if got := value(t, a, "shared"); got != want {
			t.Errorf("a reads %q, b wrote %q", got, want)
		}
	}
	if r, err := a.Txn(t.Context()).If(clientv3.Compare(clientv3.Value("shared"), "=", "19b")).
		Then(clientv3.OpDelete("shared")).Commit(); err != nil || !r.Succeeded {
		t.Errorf("txn: %v, %v", r, err)
	}
	if got := value(t, b, "shared"); got != "" {
		t.Errorf("deleted key reads %q", got)
	}
}

func orderingNeverStepsBack(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	kv := ordering.NewKV(c, func(op clientv3.Op, _ clientv3.OpResponse, prev int64) error {
		return fmt.Errorf("%v: revision stepped back behind %d", op, prev)
	})
	for i := range 200 {
		put(t, c, "ordering/"+strconv.Itoa(i%7), "v")
		opts := []clientv3.OpOption{clientv3.WithPrefix()}
		if i%3 == 0 {
			opts = append(opts, clientv3.WithSerializable())
		}
		if _, err := kv.Get(t.Context(), "ordering/", opts...); err != nil {
			t.Fatal(err)
		}
	}
}

func namespacePrefixes(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	kv, w := namespace.NewKV(c, "ns/"), namespace.NewWatcher(c, "ns/")
	rev := put(t, kv, "a", "1")
	put(t, c, "other", "1")
	put(t, kv, "b", "2")
	if got := value(t, c, "ns/a"); got != "1" {
		t.Errorf("ns/a is %q", got)
	}
	r, err := kv.Get(t.Context(), "", clientv3.WithFromKey())
	if err != nil || len(r.Kvs) != 2 || string(r.Kvs[0].Key) != "a" {
		t.Errorf("everything in the namespace: %v, %v", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	var keys []string
	for r := range w.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(rev)) {
		for _, e := range r.Events {
			keys = append(keys, string(e.Kv.Key))
		}
		if len(keys) >= 2 {
			break
		}
	}
	if fmt.Sprint(keys) != "[a b]" {
		t.Errorf("watched %v", keys)
	}
}

func namingFollows(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	m, err := endpoints.NewManager(c, "service")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	if err := m.AddEndpoint(ctx, "service/a", endpoints.Endpoint{Addr: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	updates, err := m.NewWatchChannel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if u := <-updates; len(u) != 1 || u[0].Op != endpoints.Add || u[0].Endpoint.Addr != "127.0.0.1:1" {
		t.Errorf("first update %v", u)
	}
	if err := m.DeleteEndpoint(ctx, "service/a"); err != nil {
		t.Fatal(err)
	}
	if u := <-updates; len(u) != 1 || u[0].Op != endpoints.Delete || u[0].Key != "service/a" {
		t.Errorf("second update %v", u)
	}
	if list, err := m.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("list %v, %v", list, err)
	}
}

// A mirror takes a snapshot in pages while writes go on, then follows.
func mirrorFollows(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	const before, after = 2500, 50
	for i := range before {
		put(t, c, fmt.Sprintf("mirror/%04d", i), "v")
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	s := mirror.NewSyncer(c, "mirror/", 0)
	pages, errs := s.SyncBase(ctx)
	got := make(map[string]bool)
	for page := range pages {
		for _, kv := range page.Kvs {
			got[string(kv.Key)] = true
		}
	}
	if err := <-errs; err != nil || len(got) != before {
		t.Fatalf("%d keys in the base, %v", len(got), err)
	}
	for i := range after {
		put(t, c, fmt.Sprintf("mirror/%04d", before+i), "v")
	}
	for r := range s.SyncUpdates(ctx) {
		for _, e := range r.Events {
			got[string(e.Kv.Key)] = true
		}
		if len(got) == before+after {
			return
		}
	}
	t.Errorf("%d keys in the mirror, want %d", len(got), before+after)
}

// etcd's gRPC proxy stands in front of the server, and clients behind it put, watch,
// lease and lock.
func proxyServes(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kv, kvDone := grpcproxy.NewKvProxy(c)
	watch, _ := grpcproxy.NewWatchProxy(ctx, zap.NewNop(), c)
	lease, _ := grpcproxy.NewLeaseProxy(ctx, c)
	server := grpc.NewServer()
	pb.RegisterKVServer(server, kv)
	pb.RegisterWatchServer(server, watch)
	pb.RegisterLeaseServer(server, lease)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	behind := harness.Dial(t, l.Addr().String())
	lockBehindProxy(t, behind)
	rev := put(t, behind, "proxy/k", "v")
	r := <-behind.Watch(ctx, "proxy/", clientv3.WithPrefix(), clientv3.WithRev(rev))
	if len(r.Events) != 1 || string(r.Events[0].Kv.Value) != "v" {
		t.Errorf("watched %v through the proxy", r.Events)
	}
	if got := value(t, c, "proxy/k"); got != "v" {
		t.Errorf("written through the proxy: %q", got)
	}
	_ = behind.Close()
	cancel()
	_ = c.Close()
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	<-kvDone
}

func lockBehindProxy(t *testing.T, c *clientv3.Client) {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := concurrency.NewMutex(s, "proxy/lock")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
