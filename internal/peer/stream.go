package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A message on a connection is its length, 4 bytes, big-endian, and its bytes. One without bytes
// says that the sender lives.
const messageHeader = 4

// largeMessage is the length from which on a message is not copied behind its header.
const largeMessage = 64 << 10

// stream is one side's end of a connection that has shaken hands.
type stream struct {
	conn     net.Conn
	traffic  Traffic
	maxFrame int
	// timeout is how long a side may be silent.
	timeout time.Duration

	// in is read by one goroutine.
	in *bufio.Reader

	mu sync.Mutex
	// out is where small messages are put together; protected by mu, which is held while
	// something is written.
	out []byte
}

func (m *Mesh) stream(conn net.Conn, node uint64) *stream {
	return &stream{
		conn: conn, traffic: m.cfg.Traffic(node), maxFrame: m.cfg.MaxFrame, timeout: m.cfg.Timeout,
		in: bufio.NewReaderSize(conn, largeMessage),
	}
}

// send sends a message. It waits while the other side takes none. It may be called by several
// goroutines.
func (s *stream) send(b []byte) error {
	if len(b) > s.maxFrame {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, len(b))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = binary.BigEndian.AppendUint32(s.out[:0], uint32(len(b))) //nolint:gosec // checked above
	var err error
	if len(b) < largeMessage {
		s.out = append(s.out, b...)
		_, err = s.conn.Write(s.out)
	} else {
		parts := net.Buffers{s.out, b}
		_, err = parts.WriteTo(s.conn)
	}
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	s.traffic.Sent(len(b))
	return nil
}

// receive returns the next message, which is empty if it only says that the other side lives.
func (s *stream) receive() ([]byte, error) {
	var header [messageHeader]byte
	if _, err := io.ReadFull(s.in, header[:]); err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	n := binary.BigEndian.Uint32(header[:])
	if uint64(n) > uint64(s.maxFrame) { //nolint:gosec // not negative
		return nil, fmt.Errorf("%w: %d bytes", errStream, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(s.in, b); err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	s.traffic.Received(len(b))
	return b, nil
}

// beatsInTimeout is how often a side says within the timeout that it lives. Nodes of versions that
// wait for two election timeouts alone hear of it often enough, too.
const beatsInTimeout = 8

// beat says again and again that this side lives, until ctx ends.
func (s *stream) beat(ctx context.Context) {
	t := time.NewTicker(max(s.timeout/beatsInTimeout, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if s.send(nil) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
