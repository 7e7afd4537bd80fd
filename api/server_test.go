package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

func stop(r *running, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.server.Stop(ctx)
}

// TestStopEndsStreams checks that running streams end with what makes clients go on
// elsewhere, and soon.
func TestStopEndsStreams(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	held := make(chan struct{})
	defer close(held)
	r.set(func() { r.held[1] = held })
	alive := keepAliveStream(t, r)
	send(t, alive, 2)
	_, err := alive.Recv()
	check(t, err)
	send(t, alive, 1)

	began := time.Now()
	stop(r, 2*time.Minute)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
	_, err = w.stream.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: server stopped")
	_, err = alive.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: server stopped")
}

// TestStopFinishesCalls checks that a running call is waited for while there is
// time.
func TestStopFinishesCalls(t *testing.T) {
	r := start(t, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	r.set(func() { r.before = func(context.Context) { close(entered); <-release } })
	put := make(chan error, 1)
	go func() {
		_, err := r.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
		put <- err
	}()
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop(r, 20*time.Second)
	}()
	// The listener is closed once Stop waits for calls.
	for {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			break
		}
		c.Close()
	}
	close(release)
	check(t, <-put)
	<-stopped
}

// TestStopCutsOff checks that Stop returns although a call hangs and a connection
// says nothing.
func TestStopCutsOff(t *testing.T) {
	r := start(t, nil)
	silent, err := net.Dial("tcp", r.addr)
	check(t, err)
	defer silent.Close()
	entered := make(chan struct{})
	r.set(func() { r.before = func(ctx context.Context) { close(entered); <-ctx.Done() } })
	put := make(chan error, 1)
	go func() {
		_, err := r.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
		put <- err
	}()
	<-entered
	began := time.Now()
	stop(r, 100*time.Millisecond)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
	if err := <-put; err == nil {
		t.Error("a call that was cut off succeeded")
	}
	check(t, silent.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent connection: %v", err)
	}
}

func TestServeAfterStop(t *testing.T) {
	s, err := NewServer(newNode(t).config(t))
	check(t, err)
	s.Stop(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	if err := s.Serve(l, AllTraffic); !errors.Is(err, ErrServerStopped) {
		t.Errorf("Serve: %v", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is open")
	}
}

// TestServeListenerFails checks that a server whose listener fails says so.
func TestServeListenerFails(t *testing.T) {
	s, err := NewServer(newNode(t).config(t))
	check(t, err)
	defer s.Stop(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, AllTraffic) }()
	l.Close()
	if err := <-served; err == nil || !strings.HasPrefix(err.Error(), "accept connections: ") {
		t.Errorf("Serve: %v", err)
	}
}

func requireLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "hasleader", "true")
}

// TestRequireLeader checks calls and streams of clients that want a leader.
func TestRequireLeader(t *testing.T) {
	r := start(t, func(c *Config) { c.ElectionTimeout = 20 * time.Millisecond })
	const noLeader = "etcdserver: no leader"
	stream, err := r.watch.Watch(requireLeader(t.Context()))
	check(t, err)
	w := &watcher{t, stream}
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	patient := openWatch(t, r)
	patient.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	alive, err := r.lease.LeaseKeepAlive(requireLeader(t.Context()))
	check(t, err)

	r.leader.Store(0)
	_, err = r.kv.Range(requireLeader(t.Context()), &pb.RangeRequest{Key: []byte("k")})
	wantStatus(t, err, codes.Unavailable, noLeader)
	_, err = r.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	check(t, err)
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unavailable, noLeader)
	_, err = alive.Recv()
	wantStatus(t, err, codes.Unavailable, noLeader)
	stream, err = r.watch.Watch(requireLeader(t.Context()))
	check(t, err)
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unavailable, noLeader)

	r.leader.Store(testMember)
	patient.settled(0, 1)
}

func TestClientVersion(t *testing.T) {
	r := start(t, nil)
	i := &interceptors{cluster: r.node, streams: r.server.streams, clients: newClientMetrics(), log: r.server.log}
	for version, want := range map[string]error{"3.7": nil, "": nil, "\xff\xfe": errInvalidClientAPIVersion} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("client-api-version", version))
		if _, err := i.admit(ctx, "unary"); !errors.Is(err, want) {
			t.Errorf("version %q: %v, want %v", version, err, want)
		}
	}
}

// TestPanic checks that a panic in a handler ends one call, not the process.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	r := start(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	r.set(func() { r.before = func(context.Context) { panic("broken") } })
	_, err := r.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	wantStatus(t, err, codes.Internal, "latchkey: internal error")
	r.set(func() { r.before = nil })
	r.put(t, "k", "v")
	stop(r, 10*time.Second)
	if !strings.Contains(log.String(), "panic=broken") {
		t.Errorf("the log does not tell: %s", log.String())
	}
}

func TestHealthService(t *testing.T) {
	r := start(t, nil)
	client := healthpb.NewHealthClient(r.conn)
	got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	check(t, err)
	diff(t, &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, got)
	_, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "etcdserverpb.KV"})
	wantStatus(t, err, codes.NotFound, "unknown service")
}

func TestUnknownMethod(t *testing.T) {
	r := start(t, nil)
	err := r.conn.Invoke(t.Context(), "/etcdserverpb.Nothing/Nothing", &pb.StatusRequest{}, &pb.StatusResponse{})
	wantStatus(t, err, codes.Unimplemented, "unknown service etcdserverpb.Nothing")
}

func TestConfigFaults(t *testing.T) {
	_, err := NewServer(Config{MaxTxnOps: -1, MaxRequestBytes: 1 << 31})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Store is missing", "Metrics is missing", "MaxTxnOps is negative", "MaxRequestBytes is above"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	c := newNode(t).config(t)
	s, err := NewServer(c)
	check(t, err)
	defer s.Stop(t.Context())
	if _, err := NewServer(c); err == nil {
		t.Error("two servers registered the same metrics")
	}
}
