package sim

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// The memory file systems make dragonboat's log store complain on the standard logger
// that they have no disk usage.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}

// seedVariable is what a test's seed is given by.
const seedVariable = "LATCHKEY_SIM_SEED"

// seed returns the seed of a test, which is printed.
func seed(tb testing.TB) uint64 {
	tb.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv(seedVariable); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Logf("replay with LATCHKEY_SIM_SEED=%d", s)
	return s
}

// options say what a cluster is made of.
type options struct {
	seed uint64
	// splits are the keys at which the users' keys are divided among shards.
	splits []string
	// snapshotEntries is how many entries lie between two snapshots.
	snapshotEntries uint64
	// narrow has the cluster do without transactions over several shards.
	narrow bool
	// tick is Raft's, 0 for the short one of most tests.
	tick time.Duration
	// members has the cluster change its members: it begins with so many nodes, which drive the steps
	// of membership, and a monitor watches those. 0 is for a cluster of nodes that stays as it is.
	members int
}

// size is how many nodes the cluster begins with.
func (o *options) size() uint64 { return uint64(cmp.Or(o.members, nodes)) }

// timeout bounds calls as a node does: by what elections take, and a while.
func (o *options) timeout() time.Duration {
	if o.tick == 0 {
		return callTimeout
	}
	return 5*time.Second + 2*electionTicks*o.tick
}

// cluster is all nodes and the network between them. It must be made inside a
// synctest bubble.
type cluster struct {
	tb      testing.TB
	options options
	rnd     *rand.Rand
	net     *network
	// nodes are all that there ever were. Where the members change mu protects it, and monitor watches them.
	nodes []*node
	// strays are nodes that nobody may let in; protected by mu.
	strays  []*node
	mu      sync.Mutex
	monitor *monitor
	// interfere decides on calls between nodes; nil for none.
	interfere atomic.Pointer[func(call) interference]
	// stalls says where goroutines stand still; nil for nowhere.
	stalls atomic.Pointer[staller]
	// unswept keeps the shards from taking over compactions.
	unswept atomic.Bool
	// ctx ends, and wg is waited for, when the cluster is closed.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// never is more entries than any test makes.
const never = 1 << 40

// fourShards are the splits of most tests.
var fourShards = []string{"b", "c", "d"}

func newCluster(tb testing.TB, o options) *cluster {
	tb.Helper()
	// Pebble keeps channels in pools, which must not pass from one bubble to the next: what
	// lies in a pool is gone after two collections.
	runtime.GC()
	runtime.GC()
	c := &cluster{tb: tb, options: o, rnd: rand.New(rand.NewPCG(o.seed, 1)), net: newNetwork(rand.New(rand.NewPCG(o.seed, 2)))}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if o.members > 0 {
		c.monitor = newMonitor(c)
	}
	processes := make([]*process, 0, o.size())
	for id := uint64(1); id <= o.size(); id++ {
		n := newNode(c, id, id)
		c.nodes = append(c.nodes, n)
		p, err := n.start()
		if err != nil {
			tb.Fatal(err)
		}
		processes = append(processes, p)
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	c.bootstrap(ctx, processes)
	var served errgroup.Group
	for _, p := range processes {
		served.Go(func() error { return p.serve(ctx) })
	}
	if err := served.Wait(); err != nil {
		tb.Fatal(err)
	}
	c.shape(ctx)
	if c.monitor != nil {
		c.wg.Go(c.monitor.run)
	}
	return c
}

// bootstrap makes the cluster, at the leader of the system shard, and announces each node
// there.
func (c *cluster) bootstrap(ctx context.Context, processes []*process) {
	c.tb.Helper()
	var records []system.NodeRecord
	for _, n := range c.nodes {
		records = append(records, n.record())
	}
	var splits [][]byte
	for _, s := range c.options.splits {
		splits = append(splits, []byte(s))
	}
	for _, self := range records {
		for announced := false; !announced; {
			for _, p := range processes {
				if p.cluster.Replica().Serving() == 0 {
					continue
				}
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				_, err := p.cluster.Bootstrap(attempt, self, records, splits)
				cancel()
				announced = announced || err == nil
			}
			if !announced && !pause(ctx, time.Millisecond) {
				c.tb.Fatal("no system shard")
			}
		}
	}
}

// takeFirstShape gives the data shards what they own.
func (c *cluster) shape(ctx context.Context) {
	c.tb.Helper()
	state := c.nodes[0].running().cluster.State()
	for id := range state.Shards {
		shape := shard.Shape{Ordered: state.Order.Begun, Owned: state.Map.Owned(id)}
		for {
			d := c.leader(ctx, id).shards[id]
			if d.Shape().HasShape() {
				break
			}
			if err := d.GiveShape(ctx, shape); err != nil && !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrNotApplied) {
				c.tb.Fatal(err)
			}
		}
	}
	for _, n := range c.nodes {
		for _, d := range n.running().shards {
			for !d.Shape().HasShape() {
				if !pause(ctx, time.Millisecond) {
					c.tb.Fatal("a shard has no shape")
				}
			}
		}
	}
}

// replica returns a process's replica of a shard, the system shard included.
func (p *process) replica(id uint64) *raft.Replica {
	if id == placement.SystemShard {
		return p.cluster.Replica()
	}
	return p.shards[id].Replica()
}

// leader waits for a node that serves as leader of a shard.
func (c *cluster) leader(ctx context.Context, id uint64) *process {
	c.tb.Helper()
	for {
		if p := c.leads(id); p != nil {
			return p
		}
		if !pause(ctx, time.Millisecond) {
			c.tb.Fatalf("no leader of shard %d", id)
		}
	}
}

// leads returns a node that serves as leader of a shard, the one of the newest term,
// nil if there is none.
func (c *cluster) leads(id uint64) (leader *process) {
	newest := uint64(0)
	for _, n := range c.all() {
		if p := n.running(); p != nil {
			if term := p.replica(id).Serving(); term > newest {
				newest, leader = term, p
			}
		}
	}
	return leader
}

// place makes a node the leader of a shard and waits until it serves.
func (c *cluster) place(id uint64, to *node) *process {
	c.tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		p := c.leads(id)
		if p != nil && p.node == to {
			return p
		}
		if p != nil {
			// A refused request is made again.
			_ = p.replica(id).Transfer(to.replica)
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.tb.Fatalf("node %d does not become the leader of shard %d", to.id, id)
	return nil
}

// placeAll makes one node the leader of everything.
func (c *cluster) placeAll(to *node) {
	c.tb.Helper()
	c.place(placement.SystemShard, to)
	for id := range to.running().shards {
		c.place(id, to)
	}
}

// restart starts a node's process again and waits until it serves.
func (n *node) restart(ctx context.Context) error {
	p, err := n.start()
	if err != nil {
		return err
	}
	return p.serve(ctx)
}

func (c *cluster) way() time.Duration {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.net.way()
}

// lostAfter is how long it takes until a lost call is taken for lost.
func (c *cluster) lostAfter() time.Duration {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return time.Duration(1+c.net.rnd.IntN(20)) * time.Millisecond
}

func (c *cluster) setInterfere(f func(call) interference) { c.interfere.Store(&f) }

// close ends the cluster.
func (c *cluster) close() {
	c.cancel()
	c.mu.Lock()
	strays := c.strays
	c.mu.Unlock()
	for _, n := range append(c.all(), strays...) {
		if err := n.die(false, c.rnd); err != nil {
			c.tb.Error(err)
		}
	}
	c.wg.Wait()
}
