package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	promgrpc "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/soheilhy/cmux"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// headerTimeout bounds how long a connection may take to show what it speaks, and
// an HTTP request to send its header.
const headerTimeout = 5 * time.Minute

// Server serves the API on any number of listeners.
type Server struct {
	config  Config
	grpc    *grpc.Server
	http    *http.Server
	health  *health.Server
	streams *streams
	log     *slog.Logger

	// background counts the goroutine that watches for the leader, which
	// stopWatching ends.
	background   sync.WaitGroup
	stopWatching context.CancelFunc

	mu sync.Mutex
	// conns holds the open connections; mu protects what follows.
	conns map[*conn]struct{}
	// serving counts the running calls of Serve.
	serving sync.WaitGroup
	// stopped is set by Stop.
	stopped bool
}

// ErrServerStopped is returned by Serve when the server is stopped.
var ErrServerStopped = errors.New("api: server stopped")

// NewServer returns a server that accepts nothing yet. The caller stops it, also
// where it never served.
func NewServer(c Config) (*Server, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		config:  c,
		health:  health.NewServer(),
		streams: newStreams(c.Log),
		log:     c.Log,
		conns:   make(map[*conn]struct{}),
	}
	var opts []promgrpc.ServerMetricsOption
	if c.ExtensiveMetrics {
		opts = append(opts, promgrpc.WithServerHandlingTimeHistogram())
	}
	metrics := promgrpc.NewServerMetrics(opts...)
	if err := c.Metrics.Register(metrics); err != nil {
		return nil, fmt.Errorf("register gRPC metrics: %w", err)
	}
	codec, err := newCountingCodec(c.Metrics)
	if err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(s.options(metrics, codec)...)
	s.register()
	metrics.InitializeMetrics(s.grpc)

	handler, err := s.handler()
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopWatching = cancel
	s.background.Go(func() { s.streams.watchLeader(ctx, c.Cluster, c.ElectionTimeout) })
	return s, nil
}

func (s *Server) options(metrics *promgrpc.ServerMetrics, codec *countingCodec) []grpc.ServerOption {
	steps := &interceptors{cluster: s.config.Cluster, streams: s.streams, metrics: metrics, log: s.log}
	return append(steps.options(),
		grpc.ForceServerCodecV2(codec),
		grpc.MaxRecvMsgSize(s.config.MaxRequestBytes+messageOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(s.config.MaxConcurrentStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: s.config.PingMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.config.PingInterval, Timeout: s.config.PingTimeout}),
		// Stop returns when no handler runs any more.
		grpc.WaitForHandlers(true),
	)
}

// register adds the services.
func (s *Server) register() {
	c := &s.config
	h := headers{cluster: c.Cluster, revision: c.Maintenance.Revision}
	ru := &rules{
		maxTxnOps:       c.MaxTxnOps,
		maxRequestBytes: c.MaxRequestBytes,
		envelope:        envelopeOf(c.Cluster.MemberID()),
		minLeaseTTL:     c.shortestLease(),
	}
	admit := &admission{cluster: c.Cluster, size: c.Maintenance.DBSize, quota: c.QuotaBytes, log: s.log}

	gate := &gate{users: c.Users, tokens: c.Tokens, certificates: c.CertificateUsers, log: s.log}
	kv := &kvService{store: c.Store, headers: h, rules: ru, admit: admit, gate: gate}
	watch := &watchService{
		watches:  c.Watches,
		headers:  h,
		streams:  s.streams,
		gate:     gate,
		maxBytes: c.MaxRequestBytes + messageOverhead,
		interval: c.ProgressInterval,
	}
	lease := &leaseService{leases: c.Leases, headers: h, rules: ru, admit: admit, streams: s.streams, gate: gate}
	callers := &callers{kv: kv, watch: watch, lease: lease, watches: c.Watches, streams: s.streams}

	pb.RegisterKVServer(s.grpc, kv)
	pb.RegisterWatchServer(s.grpc, watch)
	pb.RegisterLeaseServer(s.grpc, lease)
	pb.RegisterClusterServer(s.grpc, &clusterService{cluster: c.Cluster, headers: h, gate: gate})
	pb.RegisterAuthServer(s.grpc, &authService{
		users: c.Users, tokens: c.Tokens, gate: gate, headers: h, rules: ru, cost: c.BcryptCost, log: s.log,
	})
	pb.RegisterMaintenanceServer(s.grpc, &maintenanceService{
		node: c.Maintenance, cluster: c.Cluster, headers: h, gate: gate, quota: c.QuotaBytes, spool: c.SnapshotDir,
	})
	v3lockpb.RegisterLockServer(s.grpc, &lockService{callers: callers})
	v3electionpb.RegisterElectionServer(s.grpc, &electionService{callers: callers})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
}

// Serve accepts connections from l and serves gRPC and plain HTTP on them, until
// Stop, after which it returns ErrServerStopped, or until l fails. It closes l.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		_ = l.Close()
		return ErrServerStopped
	}
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()

	mux := cmux.New(&trackedListener{Listener: l, server: s})
	mux.SetReadTimeout(headerTimeout)
	grpcListener := mux.Match(cmux.HTTP2())
	httpListener := mux.Match(cmux.Any())

	var servers sync.WaitGroup
	servers.Go(func() { s.served("grpc", s.grpc.Serve(grpcListener)) })
	servers.Go(func() { s.served("http", s.http.Serve(httpListener)) })
	err := mux.Serve()
	servers.Wait()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrServerStopped
	}
	return fmt.Errorf("accept connections: %w", err)
}

// served is told that one of the two servers of a listener has returned.
func (s *Server) served(protocol string, err error) {
	s.log.LogAttrs(context.Background(), slog.LevelDebug, "serving ended",
		slog.String("protocol", protocol), slog.Any("error", err))
}

// Stop ends the server: running streams end as etcd ends them, running calls may
// finish while ctx lasts, and what is left then is cut off. It returns when no
// goroutine of the server runs any more. A stopped server can't serve again.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()

	s.stopWatching()
	s.health.Shutdown()
	s.streams.end()

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	select {
	case <-drained:
	case <-ctx.Done():
		s.log.LogAttrs(ctx, slog.LevelWarn, "calls were cut off")
	}
	s.closeConns()
	s.grpc.Stop()
	<-drained
	s.serving.Wait()
	s.streams.readers.Wait()
	s.background.Wait()
}

// closeConns closes every open connection, those included that have not shown
// yet what they speak and so belong to neither server.
func (s *Server) closeConns() {
	s.mu.Lock()
	open := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// trackedListener tells the server of the connections that it accepts.
type trackedListener struct {
	net.Listener

	server *Server
}

// Accept waits for a connection.
func (l *trackedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, server: l.server}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.server.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection that the server can find to close it.
type conn struct {
	net.Conn

	server *Server
}

// Close closes the connection and makes the server forget it.
func (c *conn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}
