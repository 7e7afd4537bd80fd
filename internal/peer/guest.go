package peer

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// serveStream is gRPC's way to the mesh.
func serveStream(m any, stream grpc.ServerStream) error {
	mesh, ok := m.(*Mesh)
	if !ok {
		return errStream
	}
	return mesh.accept(stream)
}

// admitted is what a connection's handshake has proved.
type admitted struct{ *greeting }

// AuthType names how.
func (admitted) AuthType() string { return "latchkey" }

// entrance lets gRPC speak with those alone who have been let in.
type entrance struct{ m *Mesh }

var _ credentials.TransportCredentials = entrance{}

// ServerHandshake makes the called side of the handshake.
func (e entrance) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g, err := e.m.answer(conn)
	e.m.unproved.done(conn)
	if err != nil {
		return nil, nil, err
	}
	return &guestConn{Conn: conn, leave: sync.OnceFunc(func() { e.m.leave(g.Node) })}, admitted{g}, nil
}

// ClientHandshake is never called.
func (entrance) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errStream
}

// Info describes the handshake.
func (entrance) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "latchkey"}
}

// Clone returns the same.
func (e entrance) Clone() credentials.TransportCredentials { return e }

// OverrideServerName does nothing.
func (entrance) OverrideServerName(string) error { return nil }

// guestConn is a connection that is counted until it is closed.
type guestConn struct {
	net.Conn

	leave func()
}

// Close closes the connection.
func (c *guestConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// accept serves one stream of another node.
func (m *Mesh) accept(stream grpc.ServerStream) error {
	p, ok := peer.FromContext(stream.Context())
	if !ok {
		return errStream
	}
	a, ok := p.AuthInfo.(admitted)
	if !ok {
		return errStream
	}
	g := a.greeting
	serve := m.purpose(g)
	if serve == nil {
		return errClosed
	}
	s := &sender{traffic: m.cfg.Traffic(g.Node), stream: stream}
	ctx, cancel := context.WithCancel(stream.Context())
	var beating sync.WaitGroup
	beating.Go(func() { s.beat(ctx, m.cfg.Timeout) })
	defer beating.Wait()
	defer cancel()
	if g.Purpose == carriesCalls {
		m.replace(g.Node, &cancel)
		defer m.replaced(g.Node, &cancel)
	}
	return serve(ctx, g, s)
}

// purpose returns what serves a stream of the greeting's purpose, nil if that is gone.
func (m *Mesh) purpose(g *greeting) func(context.Context, *greeting, *sender) error {
	if g.Purpose == carriesCalls {
		return m.serveCalls
	}
	m.mu.Lock()
	w := m.wires[g.Host]
	m.mu.Unlock()
	switch {
	case w == nil:
		return nil
	case g.Purpose == carriesMessages:
		return w.serveMessages
	}
	return w.serveSnapshot
}

// enter counts a connection of a node, unless it has too many.
func (m *Mesh) enter(node uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guests[node] == maxStreams {
		return false
	}
	m.guests[node]++
	return true
}

func (m *Mesh) leave(node uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guests[node]--; m.guests[node] == 0 {
		delete(m.guests, node)
	}
}

// replace ends the node's older stream of calls, which it has given up.
func (m *Mesh) replace(node uint64, cancel *context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if older := m.callers[node]; older != nil {
		(*older)()
	}
	m.callers[node] = cancel
}

// replaced forgets a stream of calls, unless it is not the newest any more.
func (m *Mesh) replaced(node uint64, cancel *context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.callers[node] == cancel {
		delete(m.callers, node)
	}
}

// receive hands the messages of a stream to fn until ctx ends, the stream breaks or fn
// fails.
func (s *sender) receive(ctx context.Context, fn func([]byte) error) error {
	failed := make(chan error, 1)
	// When ctx ends the caller returns, which ends the stream and the goroutine.
	go func() {
		for {
			var b []byte
			err := s.stream.RecvMsg(&b)
			if err == nil && ctx.Err() == nil {
				s.traffic.Received(len(b))
				err = fn(b)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// conversation serves the calls of one node.
type conversation struct {
	m    *Mesh
	from uint64
	s    *sender
	ctx  context.Context //nolint:containedctx // lives as long as the stream
	kick chan struct{}
	// wg counts the goroutines of calls and the one that sends answers.
	wg sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	// running are the calls without an answer, and held the bytes of their requests.
	running map[uint64]context.CancelFunc
	held    int
	// answers are those that wait to be sent.
	answers []answer
	over    bool
}

// answer is what becomes of one call.
type answer struct {
	number uint64
	op     byte
	body   []byte
}

// serveCalls serves a stream of calls.
func (m *Mesh) serveCalls(ctx context.Context, g *greeting, s *sender) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &conversation{
		m: m, from: g.Node, s: s, ctx: ctx, kick: make(chan struct{}, 1), running: make(map[uint64]context.CancelFunc),
	}
	c.wg.Go(func() { c.sendAnswers(cancel) })
	defer c.wg.Wait()
	defer c.end()
	defer cancel()
	return s.receive(ctx, func(b []byte) error { return eachRecord(b, c.record) })
}

// end keeps calls that are read from now on from being carried out.
func (c *conversation) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// record carries one record out.
func (c *conversation) record(op byte, number uint64, body []byte) error {
	c.m.mu.Lock()
	handler := c.m.handler
	c.m.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case op == opCancel:
		if cancel := c.running[number]; cancel != nil {
			cancel()
		}
		return nil
	case op == opPing:
		c.answerLocked(answer{number: number, op: opPong})
		return nil
	case op != opCall || c.running[number] != nil:
		return errStream
	case c.over:
		return errClosed
	case handler == nil, len(c.running) >= maxRunning, c.held > 0 && c.held+len(body) > maxHeld:
		c.answerLocked(answer{number: number, op: opRefuse})
		return nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.running[number] = cancel
	c.held += len(body)
	c.wg.Go(func() {
		defer cancel()
		a := answer{number: number, op: opAnswer, body: handler(ctx, c.from, body)}
		if len(a.body)+recordBytes > c.m.cfg.MaxFrame {
			a.op, a.body = opFail, nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, number)
		c.held -= len(body)
		c.answerLocked(a)
	})
	return nil
}

// answerLocked queues an answer. c.mu must be held.
func (c *conversation) answerLocked(a answer) {
	c.answers = append(c.answers, a)
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// sendAnswers sends answers until the stream ends, and ends it where it can't.
func (c *conversation) sendAnswers(cancel context.CancelFunc) {
	defer cancel()
	for {
		for b := c.batch(); b != nil; b = c.batch() {
			if c.s.send(b) != nil {
				return
			}
		}
		select {
		case <-c.kick:
		case <-c.ctx.Done():
			return
		}
	}
}

// batch returns the next message of answers, nil if there is none.
func (c *conversation) batch() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b []byte
	taken := 0
	for _, a := range c.answers {
		if len(b) > 0 && len(b)+len(a.body)+recordBytes > min(batchBytes, c.m.cfg.MaxFrame) {
			break
		}
		taken++
		b = appendRecord(b, a.op, a.number, a.body)
	}
	clear(c.answers[:taken])
	c.answers = c.answers[taken:]
	return b
}

// acknowledgement answers one part of a snapshot.
func acknowledgement(taken bool) []byte {
	if taken {
		return binary.AppendUvarint(nil, 1)
	}
	return binary.AppendUvarint(nil, 0)
}
