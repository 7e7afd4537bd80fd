package api

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// handshakeTimeout bounds a TLS handshake.
	handshakeTimeout = 10 * time.Second
	// acceptPause is how long accepting rests where the process is out of files.
	acceptPause = 100 * time.Millisecond
)

// The protocols that a server offers in a TLS handshake.
const protoHTTP2, protoHTTP1 = "h2", "http/1.1"

// ServeTLS is Serve over TLS. What config says of protocols is replaced. Where gRPC
// and HTTP come on one listener, a client that speaks nothing but HTTP/2, as those of
// gRPC do, is served by gRPC if its first request is a call; any other by net/http,
// which passes calls on.
func (s *Server) ServeTLS(l net.Listener, t Traffic, config *tls.Config) error {
	return s.serve(l, func(tracked net.Listener) error {
		f := &fork{
			listener: tracked, server: s, traffic: t, config: forkingConfig(config, t),
			grpc: make(chan net.Conn), http: make(chan net.Conn), done: make(chan struct{}),
		}
		var servers sync.WaitGroup
		if t.grpc() {
			servers.Go(func() { s.served("grpc over TLS", s.grpc.Serve(&branch{f, f.grpc})) })
		}
		if h := s.http[t]; h != nil {
			servers.Go(func() { s.served("https", h.Serve(&branch{f, f.http})) })
		}
		defer servers.Wait()
		return f.run()
	})
}

// forkingConfig returns config with what lets a fork tell by which server a client
// is to be served.
func forkingConfig(config *tls.Config, t Traffic) *tls.Config {
	config = config.Clone()
	inner := config.GetConfigForClient
	config.NextProtos = []string{protoHTTP2, protoHTTP1}
	if t == GRPCTraffic {
		config.NextProtos = []string{protoHTTP2}
	}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if c, ok := hello.Conn.(*conn); ok {
			c.onlyHTTP2 = slices.Contains(hello.SupportedProtos, protoHTTP2) &&
				!slices.Contains(hello.SupportedProtos, protoHTTP1)
		}
		if inner == nil {
			return nil, nil //nolint:nilnil // crypto/tls then takes the configuration that it has
		}
		chosen, err := inner(hello)
		if chosen != nil {
			chosen = chosen.Clone()
			chosen.NextProtos = config.NextProtos
		}
		return chosen, err
	}
	return config
}

// fork accepts connections, makes their TLS handshakes and hands each to one of two
// servers.
type fork struct {
	listener   net.Listener
	server     *Server
	traffic    Traffic
	config     *tls.Config
	grpc, http chan net.Conn
	// done is closed when the listener is.
	done chan struct{}
	once sync.Once
}

// run accepts connections until the listener fails or is closed. It returns when
// the last handshake has ended.
func (f *fork) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	var handshakes sync.WaitGroup
	defer handshakes.Wait()
	defer cancel()
	defer func() { _ = f.close() }()
	for {
		raw, err := f.listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
			select {
			case <-time.After(acceptPause):
				continue
			case <-f.done:
			}
		}
		if err != nil {
			return err
		}
		handshakes.Go(func() { f.handshake(ctx, raw) })
	}
}

// handshake hands a connection to its server once its handshake is made.
func (f *fork) handshake(ctx context.Context, raw net.Conn) {
	secure := tls.Server(raw, f.config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		f.server.log.LogAttrs(ctx, slog.LevelDebug, "a TLS handshake failed",
			slog.String("client", raw.RemoteAddr().String()), slog.Any("error", err))
		_ = raw.Close()
		return
	}
	to, served := (chan<- net.Conn)(f.http), net.Conn(secure)
	if c, ok := raw.(*conn); ok && c.onlyHTTP2 && f.traffic == AllTraffic {
		to, served = f.sniff(secure)
	}
	if f.traffic == GRPCTraffic {
		to = f.grpc
	}
	select {
	case to <- served:
	case <-f.done:
		_ = raw.Close()
	}
}

// sniff returns the server of a connection that speaks nothing but HTTP/2, and what
// that server is given.
func (f *fork) sniff(secure *tls.Conn) (chan<- net.Conn, net.Conn) {
	c, grpc := sniff(secure)
	if grpc {
		return f.grpc, c
	}
	return f.http, c
}

func (f *fork) close() error {
	var err error
	f.once.Do(func() {
		close(f.done)
		err = f.listener.Close()
	})
	return err
}

// branch is the listener of one server of a fork. Closing it closes the fork.
type branch struct {
	fork  *fork
	conns <-chan net.Conn
}

// Accept waits for a connection.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.fork.done:
		return nil, net.ErrClosed
	}
}

// Close closes the fork.
func (b *branch) Close() error { return b.fork.close() }

// Addr returns the address that the fork accepts on.
func (b *branch) Addr() net.Addr { return b.fork.listener.Addr() }

// peerCredentials tell services of the certificates of a connection that comes with
// its TLS handshake made.
type peerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake returns the connection as it is, and what is known of the peer.
func (p peerCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var state tls.ConnectionState
	switch c := raw.(type) {
	case *tls.Conn:
		state = c.ConnectionState()
	case *replayed:
		state = c.state
	default:
		return p.TransportCredentials.ServerHandshake(raw)
	}
	return raw, credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// Clone returns credentials like p.
func (p peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{p.TransportCredentials.Clone()}
}
