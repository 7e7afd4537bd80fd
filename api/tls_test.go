package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// pair is a certificate with its key, that is its own authority.
func pair(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"latchkey.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(t, err)
	leaf, err := x509.ParseCertificate(der)
	check(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func pool(certs ...tls.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c.Leaf)
	}
	return p
}

// secured is a running server that also serves over TLS.
type secured struct {
	*running

	addr   string
	client *tls.Config
}

// startTLS serves with a certificate of its own and asks clients for theirs.
func startTLS(t *testing.T, change func(*Config)) *secured {
	t.Helper()
	r := start(t, change)
	server, client := pair(t, "server"), pair(t, "ann")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	served := make(chan error, 1)
	go func() {
		served <- r.server.ServeTLS(l, AllTraffic, &tls.Config{
			Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool(client),
		})
	}()
	t.Cleanup(func() {
		stop(r, 10*time.Second)
		if err := <-served; !errors.Is(err, ErrServerStopped) {
			t.Errorf("ServeTLS returned %v", err)
		}
	})
	return &secured{r, l.Addr().String(), &tls.Config{
		Certificates: []tls.Certificate{client}, RootCAs: pool(server), ServerName: "latchkey.example",
	}}
}

// web returns an HTTP client that offers the protocols.
func (s *secured) web(t *testing.T, http1, http2 bool) *web {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.client.Clone(), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(http1)
	transport.Protocols.SetHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &web{T: t, client: &http.Client{Transport: transport}, url: "https://" + s.addr}
}

// bothProtocols offers HTTP/1.1 beside HTTP/2, as gRPC's own credentials do not.
type bothProtocols struct {
	credentials.TransportCredentials

	config *tls.Config
}

func (b bothProtocols) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := b.config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return c, credentials.TLSInfo{State: c.ConnectionState()}, nil
}

func (b bothProtocols) Clone() credentials.TransportCredentials { return b }

// TestTLSServesAll checks that gRPC and HTTP of both versions are served on one
// port, and calls know the client's certificate whichever way they come.
func TestTLSServesAll(t *testing.T) {
	s := startTLS(t, nil)
	plain := credentials.NewTLS(s.client)
	for name, creds := range map[string]credentials.TransportCredentials{
		"grpc alone": plain, "grpc among others": bothProtocols{plain, s.client},
	} {
		conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(creds))
		check(t, err)
		names := make(chan string, 1)
		s.set(func() {
			s.before = func(ctx context.Context) {
				name, _ := commonName(ctx)
				select {
				case names <- name:
				default:
				}
			}
		})
		_, err = pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
		check(t, err)
		if got := <-names; got != "ann" {
			t.Errorf("%s: the caller is %q", name, got)
		}
		s.set(func() { s.before = nil })
		watch, err := pb.NewWatchClient(conn).Watch(t.Context())
		check(t, err)
		w := &watcher{t, watch}
		w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, s.Revision())
		s.put(t, "k", "")
		if n := len(w.recv().GetEvents()); n != 1 {
			t.Errorf("%s: %d events", name, n)
		}
		check(t, conn.Close())
	}
	for _, offer := range []struct {
		http1, http2 bool
		major        int
	}{{true, false, 1}, {true, true, 2}, {false, true, 2}} {
		w := s.web(t, offer.http1, offer.http2)
		w.want("/v3/kv/range", `{"key":"eA=="}`, 200, `{"header":`+head(s.Revision())+`}`)
		resp := w.send(t.Context(), http.MethodGet, "/health", "")
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != offer.major {
			t.Errorf("%+v: /health is %d by HTTP/%d", offer, resp.StatusCode, resp.ProtoMajor)
		}
		if status, text := w.post("/v3/watch", `v`); status != 400 || !strings.HasPrefix(text, `{"code":3,`) {
			t.Errorf("a broken body: %d %s", status, text)
		}
	}
}

// TestTLSRefuses checks that clients without a certificate, and those that speak no
// TLS, get no answer.
func TestTLSRefuses(t *testing.T) {
	s := startTLS(t, nil)
	nobody := s.client.Clone()
	nobody.Certificates = nil
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(nobody)))
	check(t, err)
	defer conn.Close()
	_, err = pb.NewKVClient(conn).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	if got := status.Code(err); got != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
	raw, err := net.Dial("tcp", s.addr)
	check(t, err)
	defer raw.Close()
	_, err = io.WriteString(raw, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
	check(t, err)
	if b, err := io.ReadAll(raw); strings.Contains(string(b), "HTTP") {
		t.Errorf("HTTP without TLS: %q, %v", b, err)
	}
}

// TestTLSHost checks that the whitelist of hosts concerns plain requests alone.
func TestTLSHost(t *testing.T) {
	s := startTLS(t, func(c *Config) { c.AllowedHosts = []string{"good.example"} })
	for _, w := range []*web{s.web(t, true, false), s.web(t, true, true), s.web(t, false, true)} {
		resp := w.send(t.Context(), http.MethodGet, "/version", "", "Host", "evil.example")
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
}

// TestTLSManyWatches checks that the watches of one HTTP/2 connection are bounded
// by the configuration alone (20772).
func TestTLSManyWatches(t *testing.T) {
	s := startTLS(t, nil)
	w := s.web(t, true, true)
	const n = 500 // net/http's own bound is 250
	// The first request opens the connection that the others share.
	w.want("/v3/kv/range", `{"key":"eA=="}`, 200, `{"header":`+head(1)+`}`)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	open := make(chan struct{})
	for range n {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v3/watch",
				strings.NewReader(`{"create_request":{"key":"eA=="}}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := w.client.Do(req)
			if err != nil {
				t.Error(err)
				open <- struct{}{}
				return
			}
			defer resp.Body.Close()
			open <- struct{}{}
			_, _ = io.Copy(io.Discard, resp.Body) // ends with ctx
		})
	}
	for range n {
		<-open
	}
	began := time.Now()
	w.want("/v3/kv/range", `{"key":"eA=="}`, 200, `{"header":`+head(1)+`}`)
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("a range took %v", d)
	}
	cancel()
	all.Wait()
}

// TestTLSStop checks that calls that net/http passed on end like others.
func TestTLSStop(t *testing.T) {
	s := startTLS(t, nil)
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(bothProtocols{credentials.NewTLS(s.client), s.client}))
	check(t, err)
	defer conn.Close()
	stream, err := pb.NewWatchClient(conn).Watch(t.Context())
	check(t, err)
	w := &watcher{t, stream}
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	silent, err := net.Dial("tcp", s.addr)
	check(t, err)
	defer silent.Close()
	began := time.Now()
	stop(s.running, 2*time.Minute)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: server stopped")
}
