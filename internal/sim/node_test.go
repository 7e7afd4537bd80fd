package sim

import (
	"cmp"
	"context"
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

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// nodes is how many a cluster has. Their ids count from 1, and are those of their
// replicas.
const nodes = 3

// node is what is left of a node when its process dies.
type node struct {
	c     *cluster
	id    uint64
	state *vfs.MemFS
	raft  *raftvfs.MemFS

	mu sync.Mutex
	// process is the one that runs, nil while there is none; protected by mu.
	process *process
}

// process is a node that runs.
type process struct {
	node    *node
	db      *pebble.DB
	system  *raft.Host
	data    *raft.Host
	cluster *system.Cluster
	shards  map[uint64]*shard.Data
	router  *router.Router
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
	// closing says that nobody may begin to use the process; protected by mu.
	closing bool
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
	return fmt.Sprintf("00000000-0000-4000-800%d-%012d", kind, id)
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

// targets are the members of a shard whose replicas are on hosts of that name.
func targets(name string) map[uint64]string {
	members := make(map[uint64]string)
	for id := uint64(1); id <= nodes; id++ {
		members[id] = hostID(name, id)
	}
	return members
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
			for id := uint64(1); id <= nodes; id++ {
				if hostID(name, id) == target {
					return address(name, id), true
				}
			}
			return "", false
		},
		DeploymentID: 7, LogShards: 1, Tick: cmp.Or(n.c.options.tick, tick), HeartbeatTicks: 2, ElectionTicks: electionTicks,
		DB: p.db, Syncer: raft.NewSyncer(p.db), StateFS: n.state, TempDir: "tmp", RaftFS: n.raft,
		Wire:            &transport{net: n.c.net, node: n.id, system: name == "system", host: hostID(name, n.id), address: address(name, n.id), dead: &p.dead},
		Stall:           func(shardID uint64, at string) { n.c.stall(n.id, shardID, at) },
		SnapshotEntries: n.c.options.snapshotEntries, KeptEntries: n.c.options.snapshotEntries / 10,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With(slog.Uint64("node", n.id)),
	})
}

// start starts the node's hosts and the system shard.
func (n *node) start() (*process, error) {
	p := &process{node: n, shards: make(map[uint64]*shard.Data), gone: make(chan struct{})}
	var err error
	p.db, err = pebble.Open("state", &pebble.Options{FS: n.state, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		return nil, err
	}
	if p.system, err = p.open("system"); err != nil {
		return nil, err
	}
	if p.data, err = p.open("data"); err != nil {
		return nil, err
	}
	machine, err := system.Open(p.db, raft.Prefix(placement.SystemShard, n.id))
	if err != nil {
		return nil, err
	}
	members := make(map[uint64]uint64)
	for id := uint64(1); id <= nodes; id++ {
		members[id] = id
	}
	p.cluster, err = system.Start(system.Config{
		Host: p.system, Machine: machine, Self: n.id, ReplicaID: n.id, Members: members, Targets: targets("system"), Timeout: n.c.options.timeout(),
	})
	return p, err
}

// callTimeout bounds calls of most tests.
const callTimeout = 3 * time.Second

// serve starts the data shards, once the node knows the map, and the router.
func (p *process) serve(ctx context.Context) error {
	for p.cluster.State().Cluster.ID == 0 {
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	for id := range p.cluster.State().Shards {
		d, err := shard.Start(p.data, shard.DataConfig{ShardID: id, ReplicaID: p.node.id, Members: targets("data"), Oracle: oracle{p}})
		if err != nil {
			return err
		}
		p.shards[id] = d
	}
	p.router = router.New(router.Config{
		System: p.cluster, Order: oracle{p}, UserStore: p.cluster, Leaders: p.leaders(), Shards: p.shards, Timeout: p.node.c.options.timeout(),
		Self: p.node.id, WideWrites: !p.node.c.options.narrow,
	})
	for _, d := range p.shards {
		d.Connect(p.router)
	}
	p.wg.Go(p.sweep)
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
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
	return p.db.Close()
}

// die ends the node's process. A power cut loses what was not synced.
func (n *node) die(powerCut bool, rnd *rand.Rand) error {
	n.mu.Lock()
	p := n.process
	n.process = nil
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.dead.Store(true)
	close(p.gone)
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
