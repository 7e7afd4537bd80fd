package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Config says who a node is, whom it lets in and where it finds the others.
type Config struct {
	// Secret follows from the cluster's token; the same on all nodes. Who does not know it is
	// not let in. It is never sent.
	Secret []byte
	// JoinSecret is what nodes that ask to join prove instead; nil for the same. It is another one where Secret
	// follows from more than the cluster's token, which is all that they know.
	JoinSecret []byte
	// Node is this node's id, Instance that of its data directory.
	Node     uint64
	Instance string
	// ClusterID returns the cluster's id, 0 while it is not known.
	ClusterID func() uint64
	// Membership returns what this node says of the members to another; nil for nothing.
	Membership func(other uint64) Membership
	// URLs returns the peer URLs of a node, none if it is unknown.
	URLs func(node uint64) []string
	// Admit judges another node, whoever called whom. An error that wraps ErrBarred says
	// that it is for good.
	Admit func(Hello) error
	// Join has a node that is no member yet join, and returns what it is told; nil where nobody can join. It
	// may block for as long as a handshake takes.
	Join func(ctx context.Context, j Joining) (admission []byte, err error)
	// Refused, if not nil, is told when a node refuses this one, once until it refuses
	// for another reason or lets it in. It must not block.
	Refused func(*RefusedError)
	// Gone, if not nil, is told when a node that was reached has no process any more: its
	// stream broke, and then nobody listens where it is reached. It must not block.
	Gone func(node uint64)
	// Timeout is how long a node may be silent before it is taken for dead; a connection is
	// tried for two fifths of it, and handshakes are made within three of it.
	Timeout time.Duration
	// MaxFrame bounds the bytes of one message, MaxQueued those of the calls that wait
	// to be sent to one node; 0 is the default of each.
	MaxFrame, MaxQueued int
	// Unhurried, if not nil, reports whether nobody waits for an answer to a request: it may go with others,
	// within maxUnhurried.
	Unhurried func(request, answer []byte) bool
	// TLS is asked for each connection to a URL of https or unixs; nil refuses those.
	TLS func() (*tls.Config, error)
	// Traffic returns what is told of the traffic with a node; nil if nobody wants to know.
	Traffic func(node uint64) Traffic
	// Log receives what operators should see.
	Log *slog.Logger
}

// Defaults of Config.
const (
	defaultMaxFrame  = 192 << 20
	defaultMaxQueued = 64 << 20
)

// Bounds that nobody needs to change.
const (
	// batchBytes is when a message of calls or answers is full enough.
	batchBytes = 1 << 20
	// maxStreams bounds the streams that one node has to this one.
	maxStreams = 128
	// maxRunning bounds the calls of one node that run here, and maxHeld the bytes of
	// their requests.
	maxRunning = 16 << 10
	maxHeld    = 256 << 20
	// maxUnhurried bounds how long an answer that nobody waits for may be kept.
	maxUnhurried = 10 * time.Millisecond
	// firstPause and longestPause lie between two attempts to reach a node.
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// handshake is how long a handshake may take. TLS, HTTP/2 and the greeting wait for each
// other, and each may take as long as a message and its answer.
func (c *Config) handshake() time.Duration { return 3 * c.Timeout }

// dialing is how long one attempt at a connection may take, of which nothing has been heard. The
// system sends its packet again after one, two and four seconds: an attempt that lasts hears late
// that a link is back, while a new one sends a packet at once.
func (c *Config) dialing() time.Duration { return 2 * c.Timeout / 5 }

// Handler answers a call of another node. It may block; ctx ends when nobody waits for
// the answer any more.
type Handler func(ctx context.Context, from uint64, request []byte) (answer []byte)

// Mesh connects a node to all others. Its methods may be called from any goroutine.
type Mesh struct {
	cfg    Config
	ctx    context.Context //nolint:containedctx // lives as long as the mesh
	cancel context.CancelFunc
	// unproved are the connections to this node that have not shaken hands.
	unproved *unproved
	// wg counts the goroutines of links and listeners.
	wg sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	closed bool
	// listeners are where other nodes are let in.
	listeners []net.Listener
	// handler answers calls; nil until Handle.
	handler Handler
	// links are the ways to other nodes by id.
	links map[uint64]*link
	// wires are those that listen, by host.
	wires map[string]*Wire
	// inbound counts the connections of each other node to this one, and callers holds what
	// ends the stream that carries its calls.
	inbound map[uint64]int
	callers map[uint64]*context.CancelFunc
	// streams holds what ends each stream of another node to this one.
	streams map[uint64]map[*context.CancelFunc]struct{}
}

// New returns a mesh that has not met anybody yet.
func New(cfg Config) *Mesh {
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = defaultMaxFrame
	}
	if cfg.MaxQueued == 0 {
		cfg.MaxQueued = defaultMaxQueued
	}
	if cfg.Traffic == nil {
		cfg.Traffic = func(uint64) Traffic { return uncounted{} }
	}
	m := &Mesh{
		cfg: cfg, links: make(map[uint64]*link), wires: make(map[string]*Wire),
		inbound: make(map[uint64]int), callers: make(map[uint64]*context.CancelFunc),
		streams: make(map[uint64]map[*context.CancelFunc]struct{}), unproved: newUnproved(),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Serve lets other nodes in on a listener until the mesh is closed. secure, if not nil, puts
// TLS on it. It returns at once.
func (m *Mesh) Serve(l net.Listener, secure func(net.Listener) (net.Listener, error)) error {
	l = bounded{Listener: l, unproved: m.unproved, within: m.cfg.handshake()}
	if secure != nil {
		var err error
		if l, err = secure(l); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.Join(errClosed, l.Close())
	}
	m.listeners = append(m.listeners, l)
	m.wg.Go(func() { m.acceptFrom(l) })
	return nil
}

// Handle sets what answers the calls of other nodes. Until then they are told that
// their calls were not carried out.
func (m *Mesh) Handle(h func(ctx context.Context, from uint64, request []byte) (answer []byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handler = h
}

// Call hands a request, which must not be changed any more, to a node and returns its
// answer. ErrUnsent says that the node certainly does not carry it out, ErrLost that it
// may, or may have. When ctx ends the call is canceled at the other node as well, and
// the cause is returned.
func (m *Mesh) Call(ctx context.Context, node uint64, request []byte) (answer []byte, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l := m.link(node)
	if l == nil {
		return nil, ErrUnsent
	}
	c, err := l.enqueue(request)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-c.done:
		return r.answer, r.err
	case <-ctx.Done():
		l.abandon(c)
		return nil, context.Cause(ctx)
	}
}

// link returns the way to a node, nil if there can't be one.
func (m *Mesh) link(node uint64) *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.links[node]
	if l == nil && !m.closed && node != m.cfg.Node {
		l = newLink(m, node)
		m.links[node] = l
		m.wg.Go(l.run)
	}
	return l
}

// Reach has the node be reached before the first call.
func (m *Mesh) Reach(node uint64) { m.link(node) }

// Forget ends all streams with a node that Config.Admit admits no more, in both directions.
func (m *Mesh) Forget(node uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.links[node]; l != nil {
		l.cancel()
		delete(m.links, node)
	}
	for cancel := range m.streams[node] {
		(*cancel)()
	}
}

// Reached reports whether calls to the node are carried now.
func (m *Mesh) Reached(node uint64) bool {
	_, ok := m.ReachedFor(node)
	return ok
}

// ReachedFor returns for how long, without a gap, calls to the node have been carried, and false where they are not now.
func (m *Mesh) ReachedFor(node uint64) (time.Duration, bool) {
	m.mu.Lock()
	l := m.links[node]
	m.mu.Unlock()
	if l == nil {
		return 0, false
	}
	return l.reachedFor()
}

// Close ends all streams. Calls end with ErrUnsent or ErrLost; it returns when none of
// other nodes runs here any more.
func (m *Mesh) Close() {
	m.mu.Lock()
	m.closed = true
	listeners := m.listeners
	m.mu.Unlock()
	m.cancel()
	for _, l := range listeners {
		_ = l.Close() // nobody is let in any more in any case
	}
	m.unproved.closeAll()
	m.wg.Wait()
}

// reporter tells of trouble with a node once, until it changes or is over.
type reporter struct {
	m    *Mesh
	node uint64
	// last is what was told, "" for nothing.
	last string
}

// over says that the node has been reached.
func (r *reporter) over() {
	if r.last != "" {
		r.m.cfg.Log.Warn("node was reached again", slog.String("node", fmt.Sprintf("%x", r.node)))
	}
	r.last = ""
}

// report tells of an attempt that failed.
func (r *reporter) report(err error) {
	var refused *RefusedError
	key := "unreachable"
	if errors.As(err, &refused) {
		key = string(refused.Kind) + refused.Text
	}
	if r.last == key || r.m.ctx.Err() != nil {
		return
	}
	r.last = key
	r.m.cfg.Log.Warn("node can't be reached", slog.String("node", fmt.Sprintf("%x", r.node)), slog.String("error", err.Error()))
	if refused != nil && r.m.cfg.Refused != nil {
		r.m.cfg.Refused(refused)
	}
}
