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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/lock/deadlock"
)

// headerTimeout bounds how long a connection may take to show what it speaks, and
// an HTTP request to send its header.
const headerTimeout = 5 * time.Minute

// pipeBytes is how much a connection in the process buffers in each direction.
const pipeBytes = 64 << 10

// streamWorkers is how many goroutines wait for calls of gRPC clients, so that their stacks
// have grown already: what a call needs is far more than a new goroutine has, and to
// copy it takes longer than many a call. Calls beyond get goroutines of their own. They take turns, and each collection
// of memory halves the stacks of those that wait: with more of them most would have to grow again for their next call.
const streamWorkers = 64

// connWindow is how much clients may send on a connection before the server tells them that it has read some: as much as
// gRPC would come to on a long and fast way. To find out how much a way takes gRPC sends a ping, and gets an answer, for
// almost every message. How much of a stream may wait to be read is bounded apart.
const connWindow = 16 << 20

// Server serves the API on any number of listeners.
type Server struct {
	config Config
	// grpc serves the connections of clients, and inner what comes in by HTTP,
	// over pipe. Both have the same services.
	grpc, inner *grpc.Server
	pipe        *bufconn.Listener
	// gateway is nil where it is disabled.
	gateway *gateway
	// http has the server of HTTP for each traffic that has any.
	http    map[Traffic]*http.Server
	health  *health.Server
	streams *streams
	// locks are behind Lock and Election.
	locks *lock.Service
	log   *slog.Logger
	// What is measured.
	watches *watchMetrics
	upkeep  *maintenanceMetrics
	clients *clientMetrics
	times   requestTimes

	// background counts the goroutine that watches for the leader, which
	// stopWatching ends, and the one that serves the pipe.
	background   sync.WaitGroup
	stopWatching context.CancelFunc

	mu sync.Mutex
	// conns holds the open connections; mu protects what follows.
	conns map[*conn]struct{}
	// serving counts the running calls of Serve.
	serving sync.WaitGroup
	// handlers counts the HTTP requests that are served.
	handlers sync.WaitGroup
	// stopped is set by Stop, and cut when it lets no more HTTP requests in.
	stopped, cut bool
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
		watches: newWatchMetrics(),
		upkeep:  newMaintenanceMetrics(),
		clients: newClientMetrics(),
		times:   newRequestTimes(),
		log:     c.Log,
		conns:   make(map[*conn]struct{}),
		http:    make(map[Traffic]*http.Server),
	}
	s.times.measured(&s.config)
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
	if err := s.registerMetrics(); err != nil {
		return nil, err
	}
	services := s.services()
	steps := &interceptors{cluster: c.Cluster, streams: s.streams, metrics: metrics, clients: s.clients, log: s.log}
	s.grpc = grpc.NewServer(append(s.options(steps, codec, c.MaxConcurrentStreams), grpc.NumStreamWorkers(streamWorkers))...)
	services.register(s.grpc)
	metrics.InitializeMetrics(s.grpc)
	// All clients of the gateway share one connection, which no client's bound may
	// hold up.
	s.inner = grpc.NewServer(s.options(steps, codec, math.MaxUint32)...)
	services.register(s.inner)
	s.pipe = bufconn.Listen(pipeBytes)
	if !c.DisableGateway {
		if s.gateway, err = newGateway(s.pipe.DialContext, c.MaxRequestBytes+messageOverhead, c.Log); err != nil {
			return nil, err
		}
	}
	handlers, err := s.httpHandlers(services.locks, steps)
	if err != nil {
		return nil, err
	}
	for t, h := range handlers {
		s.http[t] = &http.Server{
			Handler:           s.counted(h),
			ReadHeaderTimeout: headerTimeout,
			ConnContext:       withTLS,
			Protocols:         t.protocols(),
			HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: int(min(c.MaxConcurrentStreams, math.MaxInt32))},
			ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopWatching = cancel
	s.background.Go(func() { s.streams.watchLeader(ctx, c.Cluster, c.ElectionTimeout) })
	s.background.Go(func() { s.served("pipe", s.inner.Serve(s.pipe)) })
	return s, nil
}

// options are those of a gRPC server on whose connections at most most calls run at
// a time.
func (s *Server) options(steps *interceptors, codec *countingCodec, most uint32) []grpc.ServerOption {
	return append(steps.options(),
		grpc.Creds(peerCredentials{insecure.NewCredentials()}),
		grpc.ForceServerCodecV2(codec),
		grpc.MaxRecvMsgSize(s.config.MaxRequestBytes+messageOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(most),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: s.config.PingMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.config.PingInterval, Timeout: s.config.PingTimeout}),
		// Stop returns when no handler runs any more.
		grpc.WaitForHandlers(true),
	)
}

// Serve accepts connections from l and serves t on them, without TLS, until Stop,
// after which it returns ErrServerStopped, or until l fails. It closes l.
func (s *Server) Serve(l net.Listener, t Traffic) error {
	return s.serve(l, func(tracked net.Listener) error {
		switch t {
		case GRPCTraffic:
			return s.grpc.Serve(tracked)
		case HTTPTraffic, MetricsTraffic:
			return s.http[t].Serve(tracked)
		case AllTraffic:
		}
		mux := cmux.New(tracked)
		mux.SetReadTimeout(headerTimeout)
		grpcListener := mux.Match(cmux.HTTP2())
		httpListener := mux.Match(cmux.Any())

		var servers sync.WaitGroup
		servers.Go(func() { s.served("grpc", s.grpc.Serve(grpcListener)) })
		servers.Go(func() { s.served("http", s.http[t].Serve(httpListener)) })
		defer servers.Wait()
		return mux.Serve()
	})
}

// serve runs accept on l, whose connections the server can find to close them.
func (s *Server) serve(l net.Listener, accept func(net.Listener) error) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		_ = l.Close()
		return ErrServerStopped
	}
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()

	err := accept(&trackedListener{Listener: l, server: s})

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

// Waits tells another node what clients wait for in calls here: lock.Service.Waits.
func (s *Server) Waits(clients []string) []deadlock.Wait { return s.locks.Waits(clients) }

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
	for _, h := range s.http {
		if err := h.Shutdown(ctx); err != nil {
			_ = h.Close()
		}
	}
	s.awaitHandlers(ctx)
	select {
	case <-drained:
	case <-ctx.Done():
		s.log.LogAttrs(ctx, slog.LevelWarn, "calls were cut off")
	}
	s.closeConns()
	s.grpc.Stop()
	<-drained
	if s.gateway != nil {
		s.gateway.close()
	}
	s.inner.Stop()
	s.handlers.Wait()
	s.locks.Close()
	s.serving.Wait()
	s.streams.readers.Wait()
	s.background.Wait()
}

// awaitHandlers lets no more HTTP requests in, and waits while ctx lasts for those
// that are served, websockets included.
func (s *Server) awaitHandlers(ctx context.Context) {
	s.mu.Lock()
	s.cut = true
	s.mu.Unlock()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.handlers.Wait()
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
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
	// onlyHTTP2 is set during a TLS handshake where the client offers nothing else.
	onlyHTTP2 bool
}

// Close closes the connection and makes the server forget it.
func (c *conn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}
