package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A server with --auto-tls serves etcd's client and HTTP on https and unixs URLs.
func TestAutoTLS(t *testing.T) {
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	addr, socket, data := harness.FreeAddr(t), filepath.Join(dir, "s"), filepath.Join(dir, "data")
	cmd := exec.Command(bin, "--data-dir", data, "--auto-tls", "--listen-client-urls",
		"https://"+addr+",unixs://"+socket, "--advertise-client-urls", "https://"+addr, "--listen-peer-urls", harness.AnyPeerURL)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	made := filepath.Join(data, "fixtures", "client", "cert.pem")
	trusted := x509.NewCertPool()
	for {
		if pem, err := os.ReadFile(made); err == nil && trusted.AppendCertsFromPEM(pem) {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no certificate was made: %s", &log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	config := &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1"}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		if _, err = c.Put(ctx, "k", "v"); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the server does not answer: %v\n%s", err, &log)
		}
	}
	session, err := concurrency.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(session, "lock").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}

	transport := &http.Transport{
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1/health", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/health on the socket: %s", resp.Status)
	}
}
