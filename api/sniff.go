package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// sniffTimeout is how long a connection may take to show its first request. One
	// without is gRPC's, whose clients connect before they call.
	sniffTimeout = 10 * time.Second
	// sniffBytes bounds what is read of a connection to find the first request, and
	// frameBytes a frame, which is what HTTP/2 allows until a server allows more.
	sniffBytes, frameBytes = 1 << 20, 1 << 14
)

// replayed is a TLS connection of which something was read before its server got
// it. It does not show that it is one: net/http speaks HTTP/2 over connections that
// it can't ask, and over those whose handshake it has made itself.
type replayed struct {
	net.Conn

	state tls.ConnectionState

	// from reads that, and then the connection.
	from io.Reader
}

// Read reads what comes next.
func (r *replayed) Read(p []byte) (int, error) { return r.from.Read(p) }

// sniff reads a connection of HTTP/2 up to its first request and tells whether
// that is a gRPC call. The connection that it returns begins anew. A client of gRPC
// sends nothing before it has the server's settings, so it is sent empty ones; what
// server it comes to sends others, and then a client acknowledges both.
func sniff(c *tls.Conn) (_ net.Conn, grpc bool) {
	var seen bytes.Buffer
	grpc = true
	if err := c.SetReadDeadline(time.Now().Add(sniffTimeout)); err == nil {
		grpc = firstIsGRPC(c, io.TeeReader(io.LimitReader(c, sniffBytes), &seen))
		_ = c.SetReadDeadline(time.Time{}) // fails as every read will then
	}
	all := io.MultiReader(&seen, c)
	if grpc {
		return &replayed{Conn: c, state: c.ConnectionState(), from: all}, true
	}
	return &replayed{Conn: c, state: c.ConnectionState(), from: &ackFilter{from: all, left: len(http2.ClientPreface)}}, false
}

// firstIsGRPC tells whether the first request of a connection is a gRPC call, or
// there is none to be seen.
func firstIsGRPC(w io.Writer, r io.Reader) bool {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(r, preface); err != nil || string(preface) != http2.ClientPreface {
		return true
	}
	framer := http2.NewFramer(w, r)
	framer.SetMaxReadFrameSize(frameBytes)
	framer.MaxHeaderListSize = sniffBytes
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := framer.WriteSettings(); err != nil {
		return true
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return true
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			return isCall(headers.Fields)
		}
	}
}

func isCall(fields []hpack.HeaderField) bool {
	for _, f := range fields {
		if f.Name == "content-type" {
			return isGRPC(f.Value)
		}
	}
	return false
}

// isGRPC tells by its content's type whether an HTTP/2 request is a gRPC call.
func isGRPC(contentType string) bool { return strings.HasPrefix(contentType, "application/grpc") }

// ackFilter leaves out the first acknowledgement of settings: net/http ends a
// connection on which it comes to more of them than it has sent settings.
type ackFilter struct {
	from io.Reader
	// left is what is left of the preface or of a frame.
	left int
	// head is the part of a frame's header that was not read yet.
	head []byte
	// done is set when the acknowledgement was left out.
	done bool
}

// frameHead is the length of a frame's header.
const frameHead = 9

// Read reads what comes next.
func (a *ackFilter) Read(p []byte) (int, error) {
	for !a.done && a.left == 0 && len(a.head) == 0 {
		head := make([]byte, frameHead)
		if _, err := io.ReadFull(a.from, head); err != nil {
			return 0, err
		}
		length := int(binary.BigEndian.Uint32(head) >> 8)
		if http2.FrameType(head[3]) == http2.FrameSettings && http2.Flags(head[4]).Has(http2.FlagSettingsAck) && length == 0 {
			a.done = true
			break
		}
		a.head, a.left = head, length
	}
	if n := copy(p, a.head); n > 0 {
		a.head = a.head[n:]
		return n, nil
	}
	if !a.done {
		p = p[:min(len(p), a.left)]
	}
	n, err := a.from.Read(p)
	a.left -= n
	return n, err
}

// tlsKey is the key under which a request's context has the state of a connection
// that net/http does not take for one of TLS.
type tlsKey struct{}

// withTLS adds the state of a replayed connection to the context of its requests.
func withTLS(ctx context.Context, c net.Conn) context.Context {
	r, ok := c.(*replayed)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, tlsKey{}, r.state)
}

// restoreTLS sets the TLS state of a request from its context.
func restoreTLS(r *http.Request) {
	if state, ok := r.Context().Value(tlsKey{}).(tls.ConnectionState); ok && r.TLS == nil {
		r.TLS = &state
	}
}
