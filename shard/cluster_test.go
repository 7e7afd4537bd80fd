package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// network carries frames between the nodes of a cluster.
type network struct {
	mu sync.Mutex
	// wires by host, and the host that is cut off, if any; protected by mu.
	wires map[string]*wire
	cut   string
}

// isolate cuts one host off in both directions.
func (n *network) isolate(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = host
}

func (n *network) heal() { n.isolate("") }

// wire is a host's end of the network.
type wire struct {
	net  *network
	self string

	mu sync.RWMutex
	// message and chunk are protected by mu.
	message func(from string, frame []byte)
	chunk   func(from string, frame []byte) bool
}

func (n *network) wire(host string) *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wires == nil {
		n.wires = make(map[string]*wire)
	}
	w := &wire{net: n, self: host}
	n.wires[host] = w
	return w
}

func (w *wire) Listen(message func(string, []byte), chunk func(string, []byte) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.message, w.chunk = message, chunk
}

func (w *wire) StopListening() { w.Listen(nil, nil) }

func (w *wire) Connect(_ context.Context, host string) (raft.WireConn, error) {
	return conn{w, host, false}, nil
}

func (w *wire) ConnectSnapshot(_ context.Context, host string) (raft.WireConn, error) {
	return conn{w, host, true}, nil
}

type conn struct {
	from  *wire
	to    string
	parts bool
}

var errUnreachable = errors.New("unreachable")

// Send loses what is sent to or by a host that is cut off.
func (c conn) Send(frame []byte) error {
	n := c.from.net
	n.mu.Lock()
	to, lost := n.wires[c.to], n.cut == c.to || n.cut == c.from.self
	n.mu.Unlock()
	if to == nil {
		return errUnreachable
	}
	to.mu.RLock()
	defer to.mu.RUnlock()
	switch {
	case to.message == nil, c.parts && lost:
		return errUnreachable
	case lost:
	case !c.parts:
		to.message(c.from.self, frame)
	case !to.chunk(c.from.self, frame):
		return errUnreachable
	}
	return nil
}

func (conn) Close() {}

const testShard = 1

// testNode is a member of a test cluster.
type testNode struct {
	id     uint64
	raftFS *vfs.MemFS
	state  pvfs.FS
	db     *pebble.DB
	host   *raft.Host
	r      *raft.Replica
	data   *Data

	mu sync.Mutex
	// recoveries counts the states that came by snapshot. Protected by mu.
	recoveries int
}

// recovered returns how often the node's state came by snapshot.
func (nd *testNode) recovered() int {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.recoveries
}

// stall counts, and stalls nothing.
func (nd *testNode) stall(_ uint64, at string) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if at == "recover" {
		nd.recoveries++
	}
}

// observer hears of a node's host and of its shard.
type observer interface {
	raft.Observer
	Observer
}

// cluster is a few nodes with one data shard that owns everything.
type cluster struct {
	t     testing.TB
	net   *network
	nodes []*testNode
	// logged is how many entries lie between two snapshots, of which the log keeps one; 0
	// leaves both to the host.
	logged uint64
	// observer hears of the hosts that are started from now on.
	observer observer
}

func nodeHostID(i uint64) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func newDataCluster(tb testing.TB, n uint64) *cluster {
	tb.Helper()
	return makeCluster(tb, n, &cluster{})
}

// newForgetfulCluster returns a cluster whose logs don't reach back.
func newForgetfulCluster(tb testing.TB, n uint64) *cluster {
	tb.Helper()
	return makeCluster(tb, n, &cluster{logged: 50})
}

// makeCluster starts n nodes of a cluster.
func makeCluster(tb testing.TB, n uint64, c *cluster) *cluster {
	tb.Helper()
	c.t, c.net = tb, &network{}
	for i := uint64(1); i <= n; i++ {
		c.nodes = append(c.nodes, &testNode{id: i, raftFS: vfs.NewMem(), state: pvfs.NewMem()})
	}
	for _, nd := range c.nodes {
		c.start(nd)
	}
	return c
}

func (*cluster) addr(i uint64) string { return nodeHostID(i) }

func (c *cluster) start(nd *testNode) {
	c.t.Helper()
	var err error
	nd.db, err = pebble.Open("state", raft.StateOptions(nd.state, quietPebble{}))
	if err != nil {
		c.t.Fatal(err)
	}
	members := make(map[uint64]string)
	for _, m := range c.nodes {
		members[m.id] = nodeHostID(m.id)
	}
	level := slog.LevelError + 4
	if os.Getenv("RAFTLOG") != "" {
		level = slog.LevelDebug
	}
	hc := raft.HostConfig{
		Dir: "/raft", Name: "test", NodeHostID: nodeHostID(nd.id), Address: c.addr(nd.id),
		Resolve:      func(id string) (string, bool) { return id, true },
		DeploymentID: 7, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 2, ElectionTicks: 20,
		DB: nd.db, Syncer: raft.NewSyncer(nd.db), StateFS: nd.state, TempDir: "tmp", RaftFS: nd.raftFS, Wire: c.net.wire(nodeHostID(nd.id)),
		Stall: nd.stall, SnapshotEntries: c.logged,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	dc := DataConfig{ShardID: testShard, ReplicaID: nd.id, Members: members}
	if c.logged != 0 {
		hc.KeptEntries = 1
	}
	if c.observer != nil {
		hc.Observer, dc.Observer = c.observer, c.observer
	}
	if nd.host, err = raft.OpenHost(hc); err != nil {
		c.t.Fatal(err)
	}
	if nd.data, err = Start(nd.host, dc); err != nil {
		c.t.Fatal(err)
	}
	nd.r = nd.data.Replica()
}

func (c *cluster) stop(nd *testNode) {
	nd.host.Close()
	nd.data.Close()
	if err := errors.Join(nd.db.Flush(), nd.db.Close()); err != nil {
		c.t.Error(err)
	}
	nd.host = nil
}

func (c *cluster) close() {
	for _, nd := range c.nodes {
		if nd.host != nil {
			c.stop(nd)
		}
	}
}

// leader waits for a node that serves, in a term above the one given.
func (c *cluster) leader(above uint64) (*testNode, uint64) {
	c.t.Helper()
	return c.leaderAmong(above, c.nodes...)
}

// leaderAmong is leader of some nodes.
func (c *cluster) leaderAmong(above uint64, nodes ...*testNode) (*testNode, uint64) {
	c.t.Helper()
	for deadline := time.Now().Add(100 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, nd := range nodes {
			if term := nd.r.Serving(); term > above {
				c.shape(nd)
				return nd, term
			}
		}
	}
	c.t.Fatal("no leader within 100 s")
	return nil, 0
}

// shape makes the shard own everything.
func (c *cluster) shape(nd *testNode) {
	c.t.Helper()
	if nd.data.Shape().HasShape() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := nd.data.GiveShape(ctx, Shape{Owned: keys.NewSet(keys.Span{})}); err != nil && !errors.Is(err, raft.ErrNotLeader) {
		c.t.Logf("give shape: %v", err)
	}
}

// handOver makes leadership move to a node and waits until the node knows.
func (c *cluster) handOver(to *testNode) {
	c.t.Helper()
	for range 10_000 {
		for _, nd := range c.nodes {
			if err := nd.r.Transfer(to.id); err != nil {
				continue
			}
		}
		time.Sleep(5 * time.Millisecond)
		if to.r.Leader().ReplicaID == to.id {
			return
		}
	}
	c.t.Fatal("leadership did not move")
}

func (c *cluster) other(nd *testNode) *testNode {
	for _, o := range c.nodes {
		if o != nd {
			return o
		}
	}
	return nil
}

// await waits until ok.
func await(tb testing.TB, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal("it does not happen within 30 s")
		}
	}
}

type quietPebble struct{}

func (quietPebble) Infof(string, ...any)  {}
func (quietPebble) Errorf(string, ...any) {}
func (quietPebble) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
