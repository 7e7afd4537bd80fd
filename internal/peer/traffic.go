package peer

import "time"

// Traffic is told what passes between this node and another. Its methods must not block.
// Bytes are those of messages, without what frames and TLS add.
type Traffic interface {
	// Sent tells of bytes handed to a stream, Received of those that came.
	Sent(bytes int)
	Received(bytes int)
	// SendFailed tells of a stream to the node that could not be opened, or broke.
	SendFailed()
	// RoundTrip tells how long the node took to answer a ping.
	RoundTrip(took time.Duration)
}

// pingInterval lies between two pings on a stream of calls.
const pingInterval = 3 * time.Second

// uncounted is for who does not want to know.
type uncounted struct{}

var _ Traffic = uncounted{}

// Sent does nothing.
func (uncounted) Sent(int) {}

// Received does nothing.
func (uncounted) Received(int) {}

// SendFailed does nothing.
func (uncounted) SendFailed() {}

// RoundTrip does nothing.
func (uncounted) RoundTrip(time.Duration) {}
