package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// link is a direction between two nodes.
type link struct{ from, to uint64 }

// faults are how often things go wrong, in thousandths.
type faults struct {
	// lose, repeat and reorder are for Raft's messages. Those that are repeated or
	// reordered come up to late behind.
	lose, repeat, reorder int
	late                  time.Duration
	// loseCall is for calls that don't arrive, loseAnswer for answers to calls that
	// were carried out, slow for calls and answers that come late.
	loseCall, loseAnswer, slow int
}

// fate is what a test decides on one message of Raft.
type fate struct {
	lose   bool
	repeat int
	// delay comes on top of the network's; what follows waits for it.
	delay time.Duration
}

// network carries everything between nodes.
type network struct {
	mu  sync.Mutex
	rnd *rand.Rand
	// ends are the hosts that listen, by address.
	ends map[string]*transport
	// cut links carry nothing; deaf ones nothing of Raft. Both by direction.
	cut, deaf map[link]bool
	faults    faults
	// far is how much longer every way is than usual.
	far time.Duration
	// decide says what becomes of a message; nil lets all pass.
	decide func(l link, system bool, m *raftpb.Message) fate
	// snapshots counts the parts of snapshots that have arrived.
	snapshots int
}

func newNetwork(rnd *rand.Rand) *network {
	return &network{rnd: rnd, ends: make(map[string]*transport), cut: make(map[link]bool), deaf: make(map[link]bool)}
}

func (n *network) setFaults(f faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// setFar makes every way longer.
func (n *network) setFar(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.far = d
}

func (n *network) setDecide(f func(l link, system bool, m *raftpb.Message) fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.decide = f
}

// sever cuts links, in the direction given.
func (n *network) sever(links ...link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		n.cut[l] = true
	}
}

// deafen keeps Raft's messages, and no calls, from the links.
func (n *network) deafen(links ...link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		n.deaf[l] = true
	}
}

// heal makes all links work.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	clear(n.deaf)
}

// around returns the links to and from a node.
func around(id uint64) []link {
	var links []link
	for other := uint64(1); other <= nodes; other++ {
		if other != id {
			links = append(links, link{id, other}, link{other, id})
		}
	}
	return links
}

// latency is the shortest way between two nodes.
const latency = 100 * time.Microsecond

// way returns how long something takes. n.mu must be held.
func (n *network) way() time.Duration {
	return latency + n.far + time.Duration(n.rnd.IntN(200))*time.Microsecond
}

// happens draws whether something of a chance in thousandths happens. n.mu must be
// held.
func (n *network) happens(chance int) bool { return chance > 0 && n.rnd.IntN(1000) < chance }

// drawn is happens for callers without n.mu.
func (n *network) drawn(chance func(faults) int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.happens(chance(n.faults))
}

// dawdle returns how much longer than usual a call or an answer takes.
func (n *network) dawdle() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.happens(n.faults.slow) {
		return 0
	}
	return time.Duration(n.rnd.Int64N(int64(n.faults.late)))
}

func (n *network) passes(l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut[l]
}

// parcel is messages on their way.
type parcel struct {
	data []byte
	at   time.Time
}

// transport is one host's end of the network, a raft.Wire.
type transport struct {
	net    *network
	p      *process
	node   uint64
	system bool
	// host is the host's id, address where others reach it.
	host, address string
	// dead is set when the host's process has died.
	dead    *atomic.Bool
	message func(from string, frame []byte)
	chunk   func(from string, frame []byte) bool
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func (t *transport) Listen(message func(from string, frame []byte), chunk func(from string, frame []byte) bool) {
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	t.message, t.chunk = message, chunk
	t.net.ends[t.address] = t
}

func (t *transport) StopListening() {
	t.net.mu.Lock()
	if t.net.ends[t.address] == t {
		delete(t.net.ends, t.address)
	}
	t.net.mu.Unlock()
	t.cancel()
	t.wg.Wait()
}

// arrive hands a parcel to whoever listens at an address now.
func (n *network) arrive(from *transport, address string, data []byte) {
	n.mu.Lock()
	to := n.ends[address]
	n.mu.Unlock()
	if to == nil || to.dead.Load() || !letIn(from.p, to.p) {
		return
	}
	to.message(from.host, data)
}

func (t *transport) Connect(_ context.Context, target string) (raft.WireConn, error) {
	if t.dead.Load() {
		return nil, errCut
	}
	c := &connection{t: t, to: target, queue: make(chan parcel, 4096), closed: make(chan struct{})}
	t.wg.Go(c.run)
	return c, nil
}

// connection carries messages in order, but for those that the network reorders.
type connection struct {
	t      *transport
	to     string
	queue  chan parcel
	closed chan struct{}
	// at is when the last parcel arrives.
	at time.Time
}

func (c *connection) Close() { close(c.closed) }

func (c *connection) run() {
	for {
		select {
		case p := <-c.queue:
			time.Sleep(time.Until(p.at))
			c.t.net.arrive(c.t, c.to, p.data)
		case <-c.closed:
			return
		case <-c.t.ctx.Done():
			return
		}
	}
}

func (c *connection) Send(frame []byte) error {
	if c.t.dead.Load() {
		return nil
	}
	var b raftpb.MessageBatch
	raftpb.MustUnmarshal(&b, frame)
	n := c.t.net
	n.mu.Lock()
	defer n.mu.Unlock()
	l := link{c.t.node, nodeOf(c.to)}
	if n.cut[l] || n.deaf[l] {
		return nil
	}
	if m := c.t.p.node.c.monitor; m != nil {
		m.sent(&b)
	}
	var kept []raftpb.Message
	var delay time.Duration
	for i := range b.Requests {
		m := b.Requests[i]
		var f fate
		if n.decide != nil {
			f = n.decide(l, c.t.system, &m)
		}
		if f.lose || n.happens(n.faults.lose) {
			continue
		}
		delay = max(delay, f.delay)
		if n.happens(n.faults.repeat) {
			c.later(b, m)
		}
		if n.happens(n.faults.reorder) {
			c.later(b, m)
			continue
		}
		for range f.repeat + 1 {
			kept = append(kept, m)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	b.Requests = kept
	if at := time.Now().Add(n.way() + delay); at.After(c.at) {
		c.at = at
	}
	select {
	case c.queue <- parcel{raftpb.MustMarshal(&b), c.at}:
	default: // full, as a socket's buffer may be
	}
	return nil
}

// later sends one message of a batch apart, behind others. The network's mu must be
// held.
func (c *connection) later(b raftpb.MessageBatch, m raftpb.Message) {
	b.Requests = []raftpb.Message{m}
	data := raftpb.MustMarshal(&b)
	delay := latency + time.Duration(c.t.net.rnd.Int64N(int64(max(c.t.net.faults.late, 1))))
	c.t.wg.Go(func() {
		select {
		case <-time.After(delay):
			c.t.net.arrive(c.t, c.to, data)
		case <-c.t.ctx.Done():
		}
	})
}

var errCut = errors.New("sim: the link is cut")

func (t *transport) ConnectSnapshot(_ context.Context, target string) (raft.WireConn, error) {
	return &snapshotConnection{t, target}, nil
}

// snapshotConnection carries the chunks of a snapshot one by one.
type snapshotConnection struct {
	t  *transport
	to string
}

func (*snapshotConnection) Close() {}

func (c *snapshotConnection) Send(part []byte) error {
	n := c.t.net
	n.mu.Lock()
	l := link{c.t.node, nodeOf(c.to)}
	lost := n.cut[l] || n.deaf[l] || c.t.dead.Load()
	way := n.way()
	n.mu.Unlock()
	if lost {
		return errCut
	}
	time.Sleep(way)
	n.mu.Lock()
	to := n.ends[c.to]
	n.snapshots++
	n.mu.Unlock()
	if to == nil || to.dead.Load() || !letIn(c.t.p, to.p) {
		return errCut
	}
	if !to.chunk(c.t.host, part) {
		return errCut
	}
	return nil
}

// begun returns how many snapshots were begun.
func (n *network) begun() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.snapshots
}
