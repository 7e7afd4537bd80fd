package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// snapshotTimeout bounds how long the other node may take for one part of a snapshot.
const snapshotTimeout = time.Minute

// Wire carries the frames of one Raft host to the hosts of that name on other nodes.
type Wire struct {
	m    *Mesh
	host string

	// using is held, shared, while a frame is handed over.
	using sync.RWMutex
	// message and chunk take what comes; nil where nobody listens; protected by using.
	message func(from uint64, frame []byte)
	chunk   func(from uint64, frame []byte) bool
}

// Wire returns the wire of the Raft hosts of a name.
func (m *Mesh) Wire(host string) *Wire { return &Wire{m: m, host: host} }

// Listen hands frames that come to message, and parts of snapshots to chunk, which says
// whether it took the part; all parts of one stream one after the other. Until then the
// hosts of other nodes are not let in.
func (w *Wire) Listen(message func(from uint64, frame []byte), chunk func(from uint64, frame []byte) bool) {
	w.using.Lock()
	w.message, w.chunk = message, chunk
	w.using.Unlock()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.wires[w.host] = w
}

// StopListening ends what Listen began: when it returns nothing is handed over any more.
func (w *Wire) StopListening() {
	w.m.mu.Lock()
	delete(w.m.wires, w.host)
	w.m.mu.Unlock()
	w.using.Lock()
	defer w.using.Unlock()
	w.message, w.chunk = nil, nil
}

// serveMessages takes the frames of a stream.
func (w *Wire) serveMessages(ctx context.Context, g *greeting, s *inbound) error {
	return s.receive(ctx, func(b []byte) error {
		w.using.RLock()
		defer w.using.RUnlock()
		if w.message == nil {
			return errClosed
		}
		w.message(g.Node, b)
		return nil
	})
}

// serveSnapshot takes the parts of a snapshot.
func (w *Wire) serveSnapshot(ctx context.Context, g *greeting, s *inbound) error {
	take := func(b []byte) bool {
		w.using.RLock()
		defer w.using.RUnlock()
		return w.chunk != nil && w.chunk(g.Node, b)
	}
	return s.receive(ctx, func(b []byte) error {
		taken := take(b)
		if err := s.send(acknowledgement(taken)); err != nil {
			return err
		}
		if !taken {
			return errChunk
		}
		return nil
	})
}

// Messages is a stream of frames to another node. Frames may be lost.
type Messages struct {
	ch      *channel
	reading sync.WaitGroup
}

// Connect opens a stream of frames to a node, which lasts as long as ctx at the most.
func (w *Wire) Connect(ctx context.Context, node uint64) (*Messages, error) {
	ch, err := w.m.open(ctx, greeting{To: node, Purpose: carriesMessages, Host: w.host})
	if err != nil {
		return nil, err
	}
	s := &Messages{ch: ch}
	s.reading.Go(func() {
		_, err := ch.receive()
		ch.cancel(err)
	})
	return s, nil
}

// Send sends a frame. It waits while the other node takes none, and fails once the stream is
// broken.
func (s *Messages) Send(frame []byte) error { return s.ch.send(frame) }

// Close ends the stream.
func (s *Messages) Close() {
	s.ch.close()
	s.reading.Wait()
}

// Snapshot is a stream of the parts of a snapshot to another node.
type Snapshot struct {
	ch *channel
	// taken yields the answer to each part, and is closed when the stream breaks.
	taken   chan bool
	reading sync.WaitGroup
}

// ConnectSnapshot opens a stream of one snapshot's parts to a node, which lasts as long
// as ctx at the most.
func (w *Wire) ConnectSnapshot(ctx context.Context, node uint64) (*Snapshot, error) {
	ch, err := w.m.open(ctx, greeting{To: node, Purpose: carriesSnapshot, Host: w.host})
	if err != nil {
		return nil, err
	}
	s := &Snapshot{ch: ch, taken: make(chan bool, 1)}
	s.reading.Go(func() {
		defer close(s.taken)
		for {
			b, err := ch.receive()
			if err != nil {
				ch.cancel(err)
				return
			}
			select {
			case s.taken <- bytes.Equal(b, acknowledgement(true)):
			case <-ch.ctx.Done():
				return
			}
		}
	})
	return s, nil
}

// Send hands over one part and returns when the other node has taken it, so that a
// snapshot whose last part was sent is whole over there.
func (s *Snapshot) Send(frame []byte) error {
	t := time.AfterFunc(snapshotTimeout, func() { s.ch.cancel(errSilent) })
	defer t.Stop()
	if err := s.ch.send(frame); err != nil {
		return fmt.Errorf("send snapshot: %w", err)
	}
	taken, ok := <-s.taken
	switch {
	case !ok:
		return fmt.Errorf("send snapshot: %w", context.Cause(s.ch.ctx))
	case !taken:
		return errChunk
	}
	return nil
}

// Close ends the stream.
func (s *Snapshot) Close() {
	s.ch.close()
	s.reading.Wait()
}

// acknowledgement answers one part of a snapshot.
func acknowledgement(taken bool) []byte {
	if taken {
		return binary.AppendUvarint(nil, 1)
	}
	return binary.AppendUvarint(nil, 0)
}
