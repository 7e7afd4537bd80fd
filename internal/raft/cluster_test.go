package raft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/dragonboat/v4"
	raftpb "github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// register is a machine of numbered cells: command kindAdd adds to a cell and
// returns the cell's new value.
type register struct {
	db     *pebble.DB
	prefix []byte

	mu    sync.Mutex
	cells map[string]uint64
	// trail lists the ids of all commands in the order of their application
	// since the state was loaded.
	trail []CommandID
	// replacing is set from BeginReload to Reload.
	replacing bool
	// reloads, if not nil, is called before the state is replaced.
	reloads func()
}

const kindAdd Kind = 1

func newRegister(tb testing.TB, db *pebble.DB, prefix []byte) *register {
	tb.Helper()
	m := &register{db: db, prefix: prefix}
	if err := m.Reload(); err != nil {
		tb.Fatal(err)
	}
	return m
}

func (m *register) cellKey(name string) []byte {
	return append(append(append([]byte(nil), m.prefix...), 's'), name...)
}

func (m *register) BeginReload() {
	m.mu.Lock()
	m.replacing = true
	m.mu.Unlock()
	if m.reloads != nil {
		m.reloads()
	}
}

func (m *register) Reload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replacing = false
	m.cells = make(map[string]uint64)
	low := m.cellKey("")
	it, err := m.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: keys.PrefixEnd(low)})
	if err != nil {
		return err
	}
	for it.First(); it.Valid(); it.Next() {
		m.cells[string(it.Key()[len(low):])] = binary.BigEndian.Uint64(it.Value())
	}
	return it.Close()
}

func (m *register) get(name string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cells[name]
}

func (m *register) applied() []CommandID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]CommandID(nil), m.trail...)
}

type registerRun struct {
	m     *register
	b     *pebble.Batch
	dirty map[string]uint64
	trail []CommandID
}

func (m *register) Apply(b *pebble.Batch) Run {
	return &registerRun{m: m, b: b, dirty: make(map[string]uint64)}
}

func (r *registerRun) Command(c Command, want bool) (any, error, error) {
	name := string(c.Payload)
	v, ok := r.dirty[name]
	if !ok {
		v = r.m.get(name)
	}
	r.dirty[name] = v + 1
	r.trail = append(r.trail, c.ID)
	if !want {
		return nil, nil, nil
	}
	return v + 1, nil, nil
}

func (r *registerRun) Begin() error { return nil }

func (r *registerRun) Finish() error {
	for name, v := range r.dirty {
		if err := r.b.Set(r.m.cellKey(name), binary.BigEndian.AppendUint64(nil, v), nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *registerRun) Publish() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	for name, v := range r.dirty {
		r.m.cells[name] = v
	}
	r.m.trail = append(r.m.trail, r.trail...)
}

// network joins the hosts of a test, with faults.
type network struct {
	mu sync.Mutex
	// ends are the hosts that listen, by address.
	ends map[string]*wireEnd
	// drop decides on a message; nil passes all.
	drop func(from, to string, m *raftpb.Message) bool
	// repeat decides on a message that is delivered twice.
	repeat func(from, to string, m *raftpb.Message) bool
	// slow is how long a part of a snapshot takes, and streams counts the snapshots that were begun.
	slow    time.Duration
	streams atomic.Int64
}

func (n *network) setDrop(f func(from, to string, m *raftpb.Message) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop = f
}

func (n *network) setRepeat(f func(from, to string, m *raftpb.Message) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.repeat = f
}

// isolate cuts one address off in both directions.
func (n *network) isolate(addr string) {
	n.setDrop(func(from, to string, _ *raftpb.Message) bool { return from == addr || to == addr })
}

func (n *network) heal() { n.setDrop(nil) }

// pass returns what arrives of a message: nothing, itself, or itself twice.
func (n *network) pass(from, to string, m *raftpb.Message) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.drop != nil && n.drop(from, to, m):
		return 0
	case n.repeat != nil && n.repeat(from, to, m):
		return 2
	}
	return 1
}

// wire returns the end of the network that a host has at an address.
func (n *network) wire(host, addr string) *wireEnd { return &wireEnd{net: n, host: host, self: addr} }

// wireEnd is one host's end of a network. What is sent arrives before Send returns.
type wireEnd struct {
	net *network
	// host is the host's id, self its address.
	host, self string
	message    func(from string, frame []byte)
	chunk      func(from string, frame []byte) bool
	// arriving are the frames that are being handed over.
	arriving sync.WaitGroup
}

var errNotHeard = errors.New("no host listens")

func (e *wireEnd) Listen(message func(from string, frame []byte), chunk func(from string, frame []byte) bool) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.message, e.chunk = message, chunk
	if e.net.ends == nil {
		e.net.ends = make(map[string]*wireEnd)
	}
	e.net.ends[e.self] = e
}

func (e *wireEnd) StopListening() {
	e.net.mu.Lock()
	if e.net.ends[e.self] == e {
		delete(e.net.ends, e.self)
	}
	e.net.mu.Unlock()
	e.arriving.Wait()
}

// to hands something over to the host that listens at an address.
func (n *network) to(addr string, hand func(*wireEnd) error) error {
	n.mu.Lock()
	e := n.ends[addr]
	if e == nil {
		n.mu.Unlock()
		return errNotHeard
	}
	e.arriving.Add(1)
	n.mu.Unlock()
	defer e.arriving.Done()
	return hand(e)
}

func (e *wireEnd) Connect(_ context.Context, host string) (WireConn, error) {
	return messageStream{e, host}, e.net.to(host, func(*wireEnd) error { return nil })
}

func (e *wireEnd) ConnectSnapshot(_ context.Context, host string) (WireConn, error) {
	e.net.streams.Add(1)
	return chunkStream{e, host}, e.net.to(host, func(*wireEnd) error { return nil })
}

// messageStream carries batches of messages, but for those that the network drops.
type messageStream struct {
	from *wireEnd
	to   string
}

func (messageStream) Close() {}

func (c messageStream) Send(frame []byte) error {
	var b raftpb.MessageBatch
	raftpb.MustUnmarshal(&b, frame)
	var kept []raftpb.Message
	for i := range b.Requests {
		for range c.from.net.pass(c.from.self, c.to, &b.Requests[i]) {
			kept = append(kept, b.Requests[i])
		}
	}
	if len(kept) == 0 {
		return nil
	}
	b.Requests = kept
	return c.from.net.to(c.to, func(e *wireEnd) error {
		e.message(c.from.host, raftpb.MustMarshal(&b))
		return nil
	})
}

// chunkStream carries parts of snapshots.
type chunkStream struct {
	from *wireEnd
	to   string
}

func (chunkStream) Close() {}

func (c chunkStream) Send(frame []byte) error {
	time.Sleep(c.from.net.slow)
	return c.from.net.to(c.to, func(e *wireEnd) error {
		if !e.chunk(c.from.host, frame) {
			return errors.New("the part was not taken")
		}
		return nil
	})
}

const testShard = 1

// member of a test cluster.
type testNode struct {
	id     uint64
	raftFS *vfs.MemFS
	state  pvfs.FS
	db     *pebble.DB
	host   *Host
	r      *Replica
	m      *register
	// reloads is the register's.
	reloads func()
	// joins is set for one that is no first member.
	joins bool
}

type cluster struct {
	t     testing.TB
	name  string
	net   *network
	nodes []*testNode
	// oracle numbers commands; nil where none has a number.
	oracle Oracle
	// resolved hears of what was promised of all keys; may be nil.
	resolved func(rev int64)
	// observer hears of the hosts that are started from now on; may be nil.
	observer Observer
	// snapshots and kept are the hosts' SnapshotEntries and KeptEntries; 0 is the default.
	snapshots, kept uint64
}

func nodeHostID(i uint64) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func newCluster(tb testing.TB, n uint64) *cluster {
	tb.Helper()
	return makeCluster(tb, n, cluster{})
}

// makeCluster starts n nodes of a cluster, of which kind says what it keeps.
func makeCluster(tb testing.TB, n uint64, kind cluster) *cluster {
	tb.Helper()
	c := &kind
	c.t, c.name, c.net = tb, tb.Name(), &network{}
	for i := uint64(1); i <= n; i++ {
		c.nodes = append(c.nodes, &testNode{id: i, raftFS: vfs.NewMem(), state: pvfs.NewMem()})
	}
	for _, nd := range c.nodes {
		c.start(nd)
	}
	return c
}

func (c *cluster) addr(i uint64) string { return fmt.Sprintf("%s-%d", c.name, i) }

func (c *cluster) start(nd *testNode) {
	c.t.Helper()
	if err := c.open(nd); err != nil {
		c.t.Fatal(err)
	}
}

// open starts a node; one that can't be started is stopped.
func (c *cluster) open(nd *testNode) (err error) {
	c.t.Helper()
	nd.db, err = pebble.Open("state", StateOptions(nd.state, quietPebble{}))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.stop(nd)
		}
	}()
	members := make(map[uint64]string)
	for _, m := range c.nodes {
		if !m.joins {
			members[m.id] = nodeHostID(m.id)
		}
	}
	if nd.joins {
		members = nil
	}
	level := slog.LevelError + 4
	if os.Getenv("RAFTLOG") != "" {
		level = slog.LevelDebug
	}
	nd.host, err = OpenHost(HostConfig{
		Dir: "/raft", Name: "test", NodeHostID: nodeHostID(nd.id), Address: c.addr(nd.id),
		Resolve: func(id string) (string, bool) {
			var i uint64 // nodes may be joining meanwhile
			_, err := fmt.Sscanf(id, "00000000-0000-4000-8000-%012d", &i)
			return c.addr(i), err == nil
		},
		DeploymentID: 7, LogShards: 1, Tick: 10 * time.Millisecond, HeartbeatTicks: 2, ElectionTicks: 20,
		DB: nd.db, Syncer: NewSyncer(nd.db), StateFS: nd.state, TempDir: "tmp", RaftFS: nd.raftFS, Wire: c.net.wire(nodeHostID(nd.id), c.addr(nd.id)), Observer: c.observer,
		SnapshotEntries: c.snapshots, KeptEntries: c.kept,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		return err
	}
	nd.m = newRegister(c.t, nd.db, Prefix(testShard, nd.id))
	nd.m.reloads = nd.reloads
	nd.r, err = nd.host.Start(ReplicaConfig{ShardID: testShard, ReplicaID: nd.id, Members: members, Machine: nd.m, Oracle: c.oracle, Resolved: c.resolved})
	return err
}

func (c *cluster) stop(nd *testNode) {
	if nd.host != nil {
		nd.host.Close()
	}
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
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		for _, nd := range c.nodes {
			if nd.host != nil {
				if term := nd.r.Serving(); term > above {
					return nd, term
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
	c.t.Fatal("no leader within 30 s")
	return nil, 0
}

func (c *cluster) add(nd *testNode, cell string) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	v, err := nd.r.Propose(ctx, kindAdd, []byte(cell))
	n, _ := v.(uint64)
	return n, err
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

// transfer asks the shard's leader to hand over to a replica. It does not wait.
func (h *Host) transfer(replicaID uint64) error {
	return h.nh.RequestLeaderTransfer(testShard, replicaID)
}

// snapshot makes a replica record a snapshot now, after which its log is
// truncated down to the last entries.
func (h *Host) snapshot(ctx context.Context, keep uint64) error {
	_, err := h.nh.SyncRequestSnapshot(ctx, testShard, dragonboat.SnapshotOption{
		OverrideCompactionOverhead: true,
		CompactionOverhead:         keep,
	})
	return err
}

type quietPebble struct{}

func (quietPebble) Infof(string, ...any)  {}
func (quietPebble) Errorf(string, ...any) {}
func (quietPebble) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
