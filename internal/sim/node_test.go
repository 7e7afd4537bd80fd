package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/members"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// nodes is how many a cluster has whose members don't change. Their ids count from 1, and are those of
// their replicas.
const nodes = 3

// stateMemtable is how much of the state is written at once: so little that power cuts leave states of many moments.
const stateMemtable = 64 << 10

// node is what is left of a node when its process dies.
type node struct {
	c  *cluster
	id uint64
	// replica is the id of its replicas, and instance that of its disks.
	replica  uint64
	instance string
	urls     []string
	// told are the members when it joined; nil for the cluster's first nodes.
	told  []uint64
	state *vfs.MemFS
	raft  *raftvfs.MemFS

	mu sync.Mutex
	// process is the one that runs, nil while there is none; protected by mu.
	process *process
	// opened is process, or one that does not serve yet; protected by mu.
	opened *process
	// life is held by who begins or ends a process.
	life chan struct{}
	// lost says that its disks are gone; c.mu protects it.
	lost bool
	// sentAway is why the others did not let it in, for good; protected by mu.
	sentAway error
}

func newNode(c *cluster, id, replica uint64) *node {
	return &node{
		c: c, id: id, replica: replica, instance: address("disks", id), urls: []string{address("peer", id)}, life: make(chan struct{}, 1),
		state: vfs.NewCrashableMem(), raft: raftvfs.NewStrictMem(),
	}
}

// record is what the node says of itself.
func (n *node) record() system.NodeRecord {
	return system.NodeRecord{ID: n.id, Name: address("node", n.id), PeerURLs: n.urls, Instance: n.instance}
}

// process is a node that runs.
type process struct {
	node    *node
	db      *pebble.DB
	system  *raft.Host
	data    *raft.Host
	machine *system.Machine
	cluster *system.Cluster
	shards  map[uint64]*shard.Data
	router  *router.Router
	// server answers calls of other nodes.
	server atomic.Pointer[remote.Server]
	// driver and leaving go on where the members change.
	driver *members.Driver
	// ctx ends when the process has died.
	ctx    context.Context
	cancel context.CancelFunc
	// dead is set when the process has died, though parts of it may run on: whatever
	// they say counts for nothing. gone is closed then.
	dead atomic.Bool
	gone chan struct{}
	// unnamed says that the process asks for numbers as earlier versions did, which did not
	// say who asks.
	unnamed atomic.Bool
	// waits, if set, tells what clients wait for in calls of the process.
	waits func(clients []string) []deadlock.Wait
	// shown is the highest revision that clients of the process have seen.
	shown atomic.Int64
	wg    sync.WaitGroup

	mu sync.Mutex
	// ending says that serve may not begin any more, and begun is what waits for it; protected by mu.
	ending bool
	begun  sync.WaitGroup
	// closing says that nobody may begin to use the process; protected by mu.
	closing bool
	// groups are its replicas that have started; protected by mu.
	groups []*raft.Replica
	// users are those who do.
	users sync.WaitGroup
}

// enter begins a use of the process's state, which lasts until leave. It reports false
// when the state is about to be closed.
func (p *process) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.users.Add(1)
	return true
}

func (p *process) leave() { p.users.Done() }

func (n *node) running() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

func hostID(name string, id uint64) string {
	kind := 1
	if name == "system" {
		kind = 2
	}
	return fmt.Sprintf("%08x-%04x-4000-800%d-%012d", id>>32, id>>16&0xffff, kind, id&0xffff)
}

func address(name string, id uint64) string { return fmt.Sprintf("%s-%d", name, id) }

// nodeOf returns the node with a host at an address.
func nodeOf(address string) uint64 {
	id, err := strconv.ParseUint(address[strings.LastIndexByte(address, '-')+1:], 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}

// born returns the first nodes by the ids of their replicas, none for a node that joined.
func (n *node) born() map[uint64]uint64 {
	first := make(map[uint64]uint64)
	for id := uint64(1); n.told == nil && id <= n.c.options.size(); id++ {
		first[id] = id
	}
	return first
}

// targets are the first members of a shard whose replicas are on hosts of that name.
func (n *node) targets(name string) map[uint64]string {
	targets := make(map[uint64]string)
	for id, node := range n.born() {
		targets[id] = hostID(name, node)
	}
	return targets
}

const (
	tick          = 10 * time.Millisecond
	electionTicks = 10
)

func (p *process) open(name string) (*raft.Host, error) {
	n := p.node
	level := slog.LevelError + 4
	if os.Getenv("RAFTLOG") != "" {
		level = slog.LevelDebug
	}
	return raft.OpenHost(raft.HostConfig{
		Dir: "/" + name, Name: name, NodeHostID: hostID(name, n.id), Address: address(name, n.id),
		Resolve: func(target string) (string, bool) {
			for _, id := range p.reachable() {
				if hostID(name, id) == target {
					return address(name, id), true
				}
			}
			return "", false
		},
		DeploymentID: 7, LogShards: 1, Tick: cmp.Or(n.c.options.tick, tick), HeartbeatTicks: 2, ElectionTicks: electionTicks,
		DB: p.db, Syncer: raft.NewSyncer(p.db), StateFS: n.state, TempDir: "tmp", RaftFS: n.raft,
		Wire:            &transport{net: n.c.net, p: p, node: n.id, system: name == "system", host: hostID(name, n.id), address: address(name, n.id), dead: &p.dead},
		Stall:           func(shardID uint64, at string) { n.c.stall(n.id, shardID, at) },
		SnapshotEntries: n.c.options.snapshotEntries, KeptEntries: n.c.options.snapshotEntries / 10, KeptBytes: 1,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With(slog.Uint64("node", n.id)),
	})
}

// errRuns is returned for a node that is to be started and runs.
var errRuns = errors.New("sim: the node runs")

// start starts the node's hosts and the system shard.
func (n *node) start() (*process, error) {
	n.life <- struct{}{}
	defer func() { <-n.life }()
	p := &process{node: n, shards: make(map[uint64]*shard.Data), gone: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(n.c.ctx)
	n.mu.Lock()
	runs := n.opened != nil
	if !runs {
		n.opened = p
	}
	n.mu.Unlock()
	if runs {
		return nil, errRuns
	}
	var err error
	options := raft.StateOptions(n.state, quiet{})
	options.MemTableSize = stateMemtable
	p.db, err = pebble.Open("state", options)
	if err != nil {
		return nil, err
	}
	if p.machine, err = system.Open(p.db, raft.Prefix(placement.SystemShard, n.replica)); err != nil {
		return nil, err
	}
	if p.system, err = p.open("system"); err != nil {
		return nil, err
	}
	if p.data, err = p.open("data"); err != nil {
		return nil, err
	}
	c := system.Config{
		Host: p.system, Machine: p.machine, Self: n.id, ReplicaID: n.replica, Members: n.born(), Targets: n.targets("system"),
		Timeout: n.c.options.timeout(),
	}
	if n.c.monitor != nil {
		c.Remote = func() system.Leader { return remote.SystemLeader(mesh{p}, p.cluster) }
	}
	if p.cluster, err = system.Start(c); err != nil {
		return nil, err
	}
	p.has(p.cluster.Replica())
	p.answer()
	return p, nil
}

// callTimeout bounds calls of most tests.
const callTimeout = 3 * time.Second

// serve starts the data shards, once the node knows the map, and the router.
func (p *process) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()
	p.mu.Lock()
	ending := p.ending
	if !ending {
		p.begun.Add(1)
	}
	p.mu.Unlock()
	if ending {
		return errCut
	}
	defer p.begun.Done()
	if p.node.c.monitor != nil {
		p.wg.Go(p.knock)
	}
	for p.cluster.State().Cluster.ID == 0 {
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	if p.node.c.monitor != nil {
		if err := p.announce(ctx); err != nil {
			return err
		}
	}
	for id := range p.cluster.State().Shards {
		d, err := shard.Start(p.data, shard.DataConfig{ShardID: id, ReplicaID: p.node.replica, Members: p.node.targets("data"), Oracle: oracle{p}})
		if err != nil {
			return err
		}
		p.shards[id] = d
		p.has(d.Replica())
	}
	p.router = router.New(router.Config{
		System: p.cluster, Order: oracle{p}, UserStore: p.cluster, Leaders: p.leaders(), Shards: p.shards, Timeout: p.node.c.options.timeout(),
		Self: p.node.id, WideWrites: !p.node.c.options.narrow,
	})
	for _, d := range p.shards {
		d.Connect(p.router)
	}
	p.answer()
	p.wg.Go(p.sweep)
	if p.node.c.monitor != nil {
		if err := p.awaitShards(ctx); err != nil {
			return err
		}
		p.changeMembers()
		if err := p.awaitShapes(ctx); err != nil {
			return err
		}
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.node.opened != p {
		return errCut // it has died meanwhile
	}
	p.node.process = p
	return nil
}

// sweep has the shards take over the cluster's compactions.
func (p *process) sweep() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.wg.Go(func() {
		<-p.gone
		cancel()
	})
	for ctx.Err() == nil {
		rev, changed := p.cluster.Compacted()
		var again <-chan time.Time
		if rev > 0 && (p.node.c.unswept.Load() || p.router.SweepTo(ctx, rev) != nil) {
			again = time.After(100 * time.Millisecond)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// close ends what runs of the process.
func (p *process) close() error {
	if !p.dead.Swap(true) {
		close(p.gone)
	}
	p.cancel()
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	p.begun.Wait()
	if p.driver != nil {
		p.driver.Close()
	}
	if p.router != nil {
		p.router.Close()
	}
	for _, h := range []*raft.Host{p.data, p.system} {
		h.Close()
	}
	for _, d := range p.shards {
		d.Close()
	}
	p.wg.Wait()
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.users.Wait()
	return errors.Join(p.db.Flush(), p.db.Close())
}

// die ends the node's process. A power cut loses what was not synced.
func (n *node) die(powerCut bool, rnd *rand.Rand) error {
	n.life <- struct{}{}
	defer func() { <-n.life }()
	n.mu.Lock()
	p := n.opened
	n.process, n.opened = nil, nil
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.dead.Store(true)
	close(p.gone)
	p.cancel()
	if !powerCut {
		return p.close()
	}
	// The state is taken first: the log may be ahead of it, as it is on a disk, never
	// behind.
	state := n.state.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rand.New(rand.NewPCG(rnd.Uint64(), 1))})
	n.raft.SetIgnoreSyncs(true)
	err := p.close()
	n.raft.ResetToSyncedState()
	n.raft.SetIgnoreSyncs(false)
	n.state = state
	return err
}

// quiet is Pebble's logger.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
