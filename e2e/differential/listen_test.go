package differential

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// openTo tells what a listener serves: the status of each path, and of a call.
func openTo(t *testing.T, addr string) map[string]string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	seen := make(map[string]string)
	for _, path := range []string{
		"GET /metrics", "GET /health", "GET /livez", "GET /readyz", "GET /readyz/linearizable_read", "GET /version",
		"GET /debug/vars", "GET /debug/pprof/", "GET /nothing", "POST /v3/kv/range", "POST /v3beta/kv/range", "GET /v3/kv/range",
		"POST /metrics", "OPTIONS /metrics", "OPTIONS /version",
	} {
		method, at, _ := strings.Cut(path, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+at, strings.NewReader(`{"key":"YQ=="}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			seen[path] = "no HTTP"
			continue
		}
		resp.Body.Close()
		seen[path] = fmt.Sprintf("%d %s", resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin"))
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: keyA})
	seen["call"] = fmt.Sprint(err == nil)
	return seen
}

// TestListenersAlike checks that listeners for HTTP and for metrics serve what etcd's
// do, and leave to the listener for clients what etcd's leave.
func TestListenersAlike(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP apart=%t", apart), func(t *testing.T) {
			// For clients, for HTTP and for metrics.
			var etcd, latchkey [3]string
			for i := range etcd {
				etcd[i], latchkey[i] = harness.FreeAddr(t), harness.FreeAddr(t)
			}
			startEtcd(t, "etcd", func(c *embed.Config) {
				c.ListenClientUrls, c.ListenMetricsUrls = urls(t, "http://"+etcd[0]), urls(t, "http://"+etcd[2])
				if apart {
					c.ListenClientHttpUrls = urls(t, "http://"+etcd[1])
				}
			})
			flags := []string{"--listen-metrics-urls=http://" + latchkey[2]}
			if apart {
				flags = append(flags, "--listen-client-http-urls=http://"+latchkey[1])
			}
			p := &harness.Process{T: t, Dir: t.TempDir(), Addr: latchkey[0], Args: flags}
			p.Start()
			defer p.Kill()
			for i, name := range []string{"clients", "HTTP", "metrics"} {
				if diff := cmp.Diff(openTo(t, etcd[i]), openTo(t, latchkey[i])); diff != "" {
					t.Errorf("the listener for %s (-etcd +latchkey):\n%s", name, diff)
				}
			}
		})
	}
}
