package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// acceptFrom serves the connections of a listener until that is closed.
func (m *Mesh) acceptFrom(l net.Listener) {
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
	g, err := m.answer(m.ctx, conn)
	m.unproved.done(conn)
	if err != nil {
		return
	}
	defer m.leave(g.Node)
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	m.begun(g.Node, &cancel)
	defer m.ended(g.Node, &cancel)
	if g.Purpose != asksToJoin && m.cfg.Admit(g.Hello) != nil {
		return // forgotten meanwhile
	}
	if conn.SetDeadline(time.Time{}) != nil {
		return
	}
	serve := m.purpose(g)
	if serve == nil {
		return
	}
	s := &inbound{m.stream(conn, g.Node)}
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

// inbound is the called side's end of a stream.
type inbound struct{ *stream }

// receive hands the messages of a stream to fn until ctx ends, which closes the connection, the
// stream breaks, the caller is silent for too long or fn fails.
func (s *inbound) receive(ctx context.Context, fn func([]byte) error) error {
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
func (m *Mesh) purpose(g *greeting) func(context.Context, *greeting, *inbound) error {
	if g.Purpose == carriesCalls {
		return m.serveCalls
	}
	if g.Purpose == asksToJoin {
		return nil // all has been said
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
	if m.inbound[node] == maxStreams {
		return false
	}
	m.inbound[node]++
	return true
}

func (m *Mesh) leave(node uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inbound[node]--; m.inbound[node] == 0 {
		delete(m.inbound, node)
	}
}

// begun notes what ends a stream of a node, and ended that it has ended.
func (m *Mesh) begun(node uint64, cancel *context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.streams[node] == nil {
		m.streams[node] = make(map[*context.CancelFunc]struct{})
	}
	m.streams[node][cancel] = struct{}{}
}

func (m *Mesh) ended(node uint64, cancel *context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.streams[node], cancel)
	if len(m.streams[node]) == 0 {
		delete(m.streams, node)
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
