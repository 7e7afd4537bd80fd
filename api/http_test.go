package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

// call makes a request over a connection of its own.
func call(t *testing.T, r *running, method, path string) (status int, body string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.addr+path, nil)
	check(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	check(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(b), resp.Header
}

func wantHTTP(t *testing.T, r *running, path string, status int, body string) {
	t.Helper()
	gotStatus, gotBody, _ := call(t, r, http.MethodGet, path)
	if gotStatus != status || gotBody != body {
		t.Errorf("GET %s: got %d %q, want %d %q", path, gotStatus, gotBody, status, body)
	}
}

func TestHTTP(t *testing.T) {
	r := start(t, nil)
	wantHTTP(t, r, "/version", 200, `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}`)
	wantHTTP(t, r, "/nothing", 404, "404 page not found\n")
	wantHTTP(t, r, "/debug/pprof/", 404, "404 page not found\n")
	for _, path := range []string{"/version", "/health", "/livez", "/readyz", "/livez/serializable_read", "/debug/vars"} {
		status, body, h := call(t, r, http.MethodPost, path)
		if status != 405 || body != "Method Not Allowed\n" || h.Get("Allow") != "GET" {
			t.Errorf("POST %s: %d %q %v", path, status, body, h)
		}
	}
	if status, body, _ := call(t, r, http.MethodGet, "/debug/vars"); status != 200 || !strings.Contains(body, `"memstats"`) {
		t.Errorf("/debug/vars: %d", status)
	}
	r.put(t, "k", "v")
	_, body, _ := call(t, r, http.MethodGet, "/metrics")
	const counted = `grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`
	if !strings.Contains(body, counted) {
		t.Error("/metrics does not count the put")
	}
	for _, want := range []string{
		fmt.Sprint("etcd_network_client_grpc_received_bytes_total ", proto.Size(&pb.PutRequest{Key: []byte("k"), Value: []byte("v")})),
		fmt.Sprint("etcd_network_client_grpc_sent_bytes_total ", proto.Size(&pb.PutResponse{Header: header(2)})),
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	for _, want := range []string{
		"etcd_server_has_leader 1", "etcd_server_is_leader 1", "etcd_server_is_learner 0",
		"etcd_server_leader_changes_seen_total 1", fmt.Sprintf("etcd_server_quota_backend_bytes %g", float64(2<<30)),
		`etcd_server_id{server_id="8e9e05c52164694d"} 1`, `etcd_server_version{server_version="3.7.3"} 1`,
		`etcd_cluster_version{cluster_version="3.7"} 1`, "etcd_server_go_version{", "etcd_mvcc_db_total_size_in_bytes ",
		"etcd_mvcc_db_total_size_in_use_in_bytes ", "etcd_debugging_mvcc_current_revision 2",
		"etcd_debugging_mvcc_watch_stream_total 0", "etcd_debugging_mvcc_watcher_total 0",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 2)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 1, 2)
	w.request(&pb.WatchCancelRequest{WatchId: 0})
	w.recv()
	_, watching, _ := call(t, r, http.MethodGet, "/metrics")
	for _, want := range []string{"etcd_debugging_mvcc_watch_stream_total 1", "etcd_debugging_mvcc_watcher_total 1"} {
		if !strings.Contains(watching, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if strings.Contains(body, "grpc_server_handling_seconds") {
		t.Error("/metrics has histograms")
	}
}

func TestHTTPExtras(t *testing.T) {
	r := start(t, func(c *Config) { c.EnablePprof, c.ExtensiveMetrics = true, true })
	r.put(t, "k", "v")
	if status, _, _ := call(t, r, http.MethodGet, "/debug/pprof/goroutine?debug=1"); status != 200 {
		t.Errorf("/debug/pprof: %d", status)
	}
	if _, body, _ := call(t, r, http.MethodGet, "/metrics"); !strings.Contains(body, "grpc_server_handling_seconds_bucket") {
		t.Error("/metrics has no histograms")
	}
}

func TestHealthHTTP(t *testing.T) {
	r := start(t, nil)
	const (
		ok     = `{"health":"true","reason":""}`
		livez  = "[+]serializable_read ok\n"
		readyz = "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\n"
	)
	wantHTTP(t, r, "/health", 200, ok)
	wantHTTP(t, r, "/livez", 200, "ok\n")
	wantHTTP(t, r, "/livez?verbose", 200, livez+"ok\n")
	wantHTTP(t, r, "/readyz?verbose", 200, readyz+"ok\n")
	wantHTTP(t, r, "/readyz/linearizable_read?verbose", 200, "[+]linearizable_read ok\nok\n")
	wantHTTP(t, r, "/readyz/nothing", 404, "404 page not found\n")
	if _, _, h := call(t, r, http.MethodGet, "/health"); h.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("/health has type %q", h.Get("Content-Type"))
	}

	_, err := r.RaiseAlarm(t.Context(), 1, pb.AlarmType_NOSPACE)
	check(t, err)
	wantHTTP(t, r, "/health", 503, `{"health":"false","reason":"ALARM NOSPACE"}`+"\n")
	wantHTTP(t, r, "/health?exclude=NOSPACE", 200, ok)
	wantHTTP(t, r, "/readyz", 200, "ok\n")
	_, err = r.RaiseAlarm(t.Context(), 1, pb.AlarmType_CORRUPT)
	check(t, err)
	wantHTTP(t, r, "/health?exclude=NOSPACE", 503, `{"health":"false","reason":"ALARM CORRUPT"}`+"\n")
	wantHTTP(t, r, "/health?exclude=NOSPACE&exclude=CORRUPT", 200, ok)
	wantHTTP(t, r, "/readyz/data_corruption", 503, "[-]data_corruption failed: alarm activated: CORRUPT\n\n")
	wantHTTP(t, r, "/readyz?exclude=data_corruption", 200, "ok\n")
	r.set(func() { r.alarms = nil })

	r.leader.Store(0)
	wantHTTP(t, r, "/health", 503, `{"health":"false","reason":"RAFT NO LEADER"}`+"\n")
	wantHTTP(t, r, "/health?serializable=true", 200, ok)
	r.leader.Store(testMember)

	r.set(func() { r.fail = raft.ErrTimeout })
	wantHTTP(t, r, "/health", 503, `{"health":"false","reason":"RANGE ERROR:etcdserver: request timed out"}`+"\n")
	wantHTTP(t, r, "/health?serializable=true", 200, ok)
	wantHTTP(t, r, "/livez", 200, "ok\n")
	wantHTTP(t, r, "/readyz", 503, "[+]data_corruption ok\n[+]serializable_read ok\n"+
		"[-]linearizable_read failed: etcdserver: request timed out\n[+]non_learner ok\n\n")
	r.set(func() { r.broken = mvcc.ErrCorrupt })
	wantHTTP(t, r, "/health?serializable=true", 503, `{"health":"false","reason":"RANGE ERROR:etcdserver: corrupt cluster"}`+"\n")
	wantHTTP(t, r, "/livez", 503, "[-]serializable_read failed: etcdserver: corrupt cluster\n\n")
	r.set(func() { r.fail, r.broken = nil, nil })

	_, body, _ := call(t, r, http.MethodGet, "/metrics")
	for _, want := range []string{
		"etcd_server_health_success ", "etcd_server_health_failures ",
		`etcd_server_healthcheck{name="serializable_read",type="livez"} 0`,
		`etcd_server_healthchecks_total{name="serializable_read",status="success",type="livez"} `,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// TestHealthTimeout checks that /health and the others bound their reads.
func TestHealthTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.RequestTimeout = 1 })
	r.set(func() { r.before = func(ctx context.Context) { <-ctx.Done() }; r.fail = context.DeadlineExceeded })
	wantHTTP(t, r, "/health", 503, `{"health":"false","reason":"RANGE ERROR:context deadline exceeded"}`+"\n")
	wantHTTP(t, r, "/readyz?exclude=linearizable_read", 200, "ok\n")
	wantHTTP(t, r, "/readyz/linearizable_read", 503, "[-]linearizable_read failed: context deadline exceeded\n\n")
}
