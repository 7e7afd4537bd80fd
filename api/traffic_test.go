package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TestTraffic checks what each kind of listener serves, with TLS and without.
func TestTraffic(t *testing.T) {
	server := pair(t, "server")
	for _, tc := range []struct {
		traffic Traffic
		grpc    bool
		// paths are those that are served.
		paths []string
	}{
		{AllTraffic, true, []string{"/metrics", "/health", "/livez", "/version", "/debug/vars", "/v3/kv/range"}},
		{GRPCTraffic, true, nil},
		{HTTPTraffic, false, []string{"/metrics", "/health", "/livez", "/version", "/debug/vars", "/v3/kv/range"}},
		{MetricsTraffic, false, []string{"/metrics", "/health", "/livez"}},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d secure=%t", tc.traffic, secure), func(t *testing.T) {
				r := start(t, func(c *Config) { c.AllowedHosts = []string{"127.0.0.1"} })
				l, err := net.Listen("tcp", "127.0.0.1:0")
				check(t, err)
				served := make(chan error, 1)
				scheme, creds := "http", insecure.NewCredentials()
				transport := &http.Transport{DisableKeepAlives: true}
				if secure {
					client := &tls.Config{RootCAs: pool(server), ServerName: "latchkey.example"}
					scheme, creds, transport.TLSClientConfig = "https", credentials.NewTLS(client), client
					go func() {
						served <- r.server.ServeTLS(l, tc.traffic, &tls.Config{Certificates: []tls.Certificate{server}})
					}()
				} else {
					go func() { served <- r.server.Serve(l, tc.traffic) }()
				}
				var paths []string
				for _, path := range []string{"/metrics", "/health", "/livez", "/version", "/debug/vars", "/v3/kv/range"} {
					if reached(t, &http.Client{Transport: transport}, scheme+"://"+l.Addr().String()+path) {
						paths = append(paths, path)
					}
				}
				if !slices.Equal(paths, tc.paths) {
					t.Errorf("served are %s, want %s", paths, tc.paths)
				}
				conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(creds))
				check(t, err)
				defer conn.Close()
				_, err = pb.NewKVClient(conn).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
				if (err == nil) != tc.grpc {
					t.Errorf("a call: %v", err)
				}
				stop(r, 10*time.Second)
				if err := <-served; !errors.Is(err, ErrServerStopped) {
					t.Errorf("serving ended with %v", err)
				}
			})
		}
	}
}

// reached tells whether a path is served: the JSON API to POST, all else to GET.
func reached(t *testing.T, client *http.Client, url string) bool {
	t.Helper()
	method := http.MethodGet
	if strings.Contains(url, "/v3/") {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(`{"key":"aw=="}`))
	check(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Whoever may reach the listener of metrics may name any host.
func TestMetricsForAnyHost(t *testing.T) {
	r := start(t, func(c *Config) { c.AllowedHosts = []string{"good.example"} })
	for _, tc := range []struct {
		traffic Traffic
		want    int
	}{{HTTPTraffic, http.StatusMisdirectedRequest}, {MetricsTraffic, http.StatusOK}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		served := make(chan error, 1)
		go func() { served <- r.server.Serve(l, tc.traffic) }()
		t.Cleanup(func() {
			stop(r, 10*time.Second)
			<-served
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/metrics", nil)
		check(t, err)
		req.Host, req.Close = "evil.example", true
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("traffic %d: status %d, want %d", tc.traffic, resp.StatusCode, tc.want)
		}
	}
}
