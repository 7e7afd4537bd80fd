package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// admit serves the connections of a listener until that is closed.
func (m *Mesh) admit(l net.Listener) {
	pause := firstPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			m.wg.Go(func() { m.accept(conn) })
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		m.cfg.Log.Error("another node could not be let in", slog.String("address", l.Addr().String()), slog.String("error", err.Error()))
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-m.ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// accept shakes hands on a connection and serves its stream.
func (m *Mesh) accept(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	g, err := m.answer(conn)
	m.unproved.done(conn)
	if err != nil {
		return
	}
	defer m.leave(g.Node)
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if conn.SetDeadline(time.Time{}) != nil {
		return
	}
	serve := m.purpose(g)
	if serve == nil {
		return
	}
	s := &guest{m.stream(conn, g.Node)}
	var beating sync.WaitGroup
	beating.Go(func() { s.beat(ctx) })
	defer beating.Wait()
	defer cancel()
	if g.Purpose == carriesCalls {
		m.replace(g.Node, &cancel)
		defer m.replaced(g.Node, &cancel)
	}
	_ = serve(ctx, g, s) // the caller finds out when the connection is closed
}

// guest is the called side's end of a stream.
type guest struct{ *stream }

// receive hands the messages of a stream to fn until ctx ends, which closes the connection, the
// stream breaks, the caller is silent for too long or fn fails.
func (s *guest) receive(ctx context.Context, fn func([]byte) error) error {
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(2 * s.timeout)); err != nil {
			return err
		}
		b, err := s.stream.receive()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && len(b) > 0 {
			err = fn(b)
		}
		if err != nil {
			return err
		}
	}
}

// purpose returns what serves a stream of the greeting's purpose, nil if that is gone.
func (m *Mesh) purpose(g *greeting) func(context.Context, *greeting, *guest) error {
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

// conversation serves the calls of one node.
type conversation struct {
	m    *Mesh
	from uint64
	s    *guest
	ctx  context.Context //nolint:containedctx // lives as long as the stream
	// cancel ends the stream.
	cancel context.CancelFunc
	// wg counts the goroutines of calls.
	wg sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	// running are the calls without an answer, and held the bytes of their requests.
	running map[uint64]context.CancelFunc
	held    int
	// answers are those that wait to be sent, and sending says that somebody sends them.
	answers []answer
	sending bool
	over    bool
}

// answer is what becomes of one call.
type answer struct {
	number uint64
	op     byte
	body   []byte
}

// serveCalls serves a stream of calls.
func (m *Mesh) serveCalls(ctx context.Context, g *greeting, s *guest) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &conversation{m: m, from: g.Node, s: s, ctx: ctx, cancel: cancel, running: make(map[uint64]context.CancelFunc)}
	defer c.wg.Wait()
	defer func() { _ = s.conn.Close() }() // ends what waits to be sent
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
	switch op {
	case opCancel:
		c.mu.Lock()
		defer c.mu.Unlock()
		if cancel := c.running[number]; cancel != nil {
			cancel()
		}
		return nil
	case opPing:
		c.answer(answer{number: number, op: opPong}, 0)
		return nil
	case opCall:
		return c.call(number, body)
	}
	return errStream
}

// call carries a call out, or refuses it.
func (c *conversation) call(number uint64, body []byte) error {
	c.m.mu.Lock()
	handler := c.m.handler
	c.m.mu.Unlock()
	c.mu.Lock()
	refused := handler == nil || len(c.running) >= maxRunning || c.held > 0 && c.held+len(body) > maxHeld
	switch {
	case c.running[number] != nil:
		c.mu.Unlock()
		return errStream
	case c.over:
		c.mu.Unlock()
		return errClosed
	case refused:
		c.mu.Unlock()
		c.answer(answer{number: number, op: opRefuse}, 0)
		return nil
	}
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.ctx)
	c.running[number] = cancel
	c.held += len(body)
	c.wg.Go(func() {
		defer cancel()
		a := answer{number: number, op: opAnswer, body: handler(ctx, c.from, body)}
		if len(a.body)+recordBytes > c.m.cfg.MaxFrame {
			a.op, a.body = opFail, nil
		}
		c.answer(a, len(body))
	})
	return nil
}

// answer sends an answer to a call whose request had held bytes, or leaves that to who is
// sending others. It ends the stream where nothing can be sent.
func (c *conversation) answer(a answer, held int) {
	c.mu.Lock()
	if a.op == opAnswer || a.op == opFail {
		delete(c.running, a.number)
		c.held -= held
	}
	c.answers = append(c.answers, a)
	sending := c.sending
	c.sending = true
	c.mu.Unlock()
	if sending {
		return
	}
	for b := c.batch(); b != nil; b = c.batch() {
		if c.s.send(b) != nil {
			c.cancel()
			return
		}
	}
}

// batch returns the next message of answers. If there is none it returns nil, and nobody is sending
// any more.
func (c *conversation) batch() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = len(c.answers) > 0
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
