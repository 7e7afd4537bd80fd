package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// channel is the caller's end of a stream that was let in.
type channel struct {
	*stream

	// ctx ends with the stream, for the cause given to cancel.
	ctx    context.Context //nolint:containedctx // the stream's
	cancel context.CancelCauseFunc
	// silence fires when the other side has said nothing for too long.
	silence *time.Timer
	// unhook lets go of the mesh's context.
	unhook func() bool
	// beating is done when this side says no more that it lives.
	beating sync.WaitGroup
}

// open opens a stream to a node. ctx bounds the stream's life. errNoListener says that nobody
// listens at any of the node's URLs.
func (m *Mesh) open(ctx context.Context, g greeting) (*channel, error) {
	urls := m.cfg.URLs(g.To)
	if len(urls) == 0 {
		return nil, errUnknown
	}
	var errs error
	nobody := true
	for _, u := range urls {
		ch, err := m.openAt(ctx, u, g)
		if err == nil {
			return ch, nil
		}
		nobody = nobody && errors.Is(err, syscall.ECONNREFUSED)
		errs = errors.Join(errs, fmt.Errorf("%s: %w", u, err))
		if ctx.Err() != nil || m.ctx.Err() != nil {
			return nil, errClosed
		}
	}
	m.cfg.Traffic(g.To).SendFailed()
	if nobody {
		errs = fmt.Errorf("%w: %w", errNoListener, errs)
	}
	return nil, errs
}

// openAt opens a stream to a node at one of its URLs.
func (m *Mesh) openAt(ctx context.Context, u string, g greeting) (*channel, error) {
	ch := &channel{}
	ch.ctx, ch.cancel = context.WithCancelCause(ctx)
	ch.unhook = context.AfterFunc(m.ctx, func() { ch.cancel(errClosed) })
	ch.silence = time.AfterFunc(m.cfg.handshake(), func() { ch.cancel(errSlow) })
	err := m.connect(ch, u, g)
	if err != nil && ch.ctx.Err() != nil {
		err = context.Cause(ch.ctx)
	}
	if err == nil && !ch.silence.Stop() {
		err = errSlow
	}
	if err != nil {
		ch.close()
		return nil, err
	}
	ch.silence = time.AfterFunc(ch.timeout, func() { ch.cancel(errSilent) })
	ch.beating.Go(func() { ch.beat(ch.ctx) })
	return ch, nil
}

// connect shakes hands on a new connection.
func (m *Mesh) connect(ch *channel, u string, g greeting) error {
	conn, err := m.dial(ch.ctx, u)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	ch.stream = m.stream(conn, g.To)
	release := bound(ch.ctx, conn)
	if err := m.call(conn, g); err != nil {
		release()
		return err
	}
	if !release() {
		return errSlow
	}
	context.AfterFunc(ch.ctx, func() { _ = conn.Close() })
	return nil
}

// dial opens a connection to a peer URL.
func (m *Mesh) dial(ctx context.Context, address string) (net.Conn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parse peer URL: %w", err)
	}
	network, target := "tcp", u.Host
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		network, target = "unix", u.Host+u.Path
	}
	d := net.Dialer{Timeout: m.cfg.dialing(), KeepAlive: m.cfg.Timeout}
	conn, err := d.DialContext(ctx, network, target)
	if err != nil || u.Scheme == "http" || u.Scheme == "unix" {
		return conn, err
	}
	cfg, err := m.clientTLS()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if cfg.ServerName == "" {
		cfg.ServerName = u.Hostname()
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// clientTLS returns what a connection is made with.
func (m *Mesh) clientTLS() (*tls.Config, error) {
	if m.cfg.TLS == nil {
		return nil, errNoTLS
	}
	return m.cfg.TLS()
}

// receive returns the next message that says something.
func (ch *channel) receive() ([]byte, error) {
	for {
		b, err := ch.stream.receive()
		if err != nil {
			return nil, ch.cause(err)
		}
		ch.silence.Reset(ch.timeout)
		if len(b) > 0 {
			return b, nil
		}
	}
}

// send sends a message.
func (ch *channel) send(b []byte) error {
	if err := ch.stream.send(b); err != nil {
		ch.traffic.SendFailed()
		return ch.cause(err)
	}
	return nil
}

// cause prefers the reason for which the stream was given up.
func (ch *channel) cause(err error) error {
	if ch.ctx.Err() != nil {
		return context.Cause(ch.ctx)
	}
	return err
}

// close gives the stream and its connection back.
func (ch *channel) close() {
	ch.silence.Stop()
	ch.unhook()
	ch.cancel(errClosed)
	if ch.stream != nil {
		_ = ch.conn.Close()
	}
	ch.beating.Wait()
}
