package raft

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/share"
)

// HostConfig says how a host of replicas runs.
type HostConfig struct {
	// Dir is the directory of the Raft log and of what dragonboat keeps.
	Dir string
	// Made says that the log was made at an earlier start. It must be there.
	Made bool
	// Name tells the hosts of a process apart in logs: "data", "system".
	Name string
	// NodeHostID is this host's address in the registry, a UUID that never
	// changes.
	NodeHostID string
	// Address is what the transport calls this host.
	Address string
	// Resolve returns the address of the host with a NodeHostID.
	Resolve func(nodeHostID string) (string, bool)
	// DeploymentID is the same on all nodes of a cluster and never changes.
	DeploymentID uint64
	// LogShards is the number of workers that write the log. It never changes after the first
	// start.
	LogShards uint64
	// Tick is Raft's unit of time. HeartbeatTicks and ElectionTicks count it.
	Tick                          time.Duration
	HeartbeatTicks, ElectionTicks uint64
	// DB is the node's Pebble, which keeps the state of all replicas. Its owner
	// closes it after the host.
	DB *pebble.DB
	// Syncer is DB's.
	Syncer *Syncer
	// StateFS is the file system of DB and TempDir a directory there for the
	// files that a snapshot is unpacked into.
	StateFS vfs.FS
	TempDir string
	// RaftFS is the file system of the log; nil is the operating system's.
	RaftFS config.IFS
	// Wire carries Raft's messages, nil for a host that reaches no other.
	Wire Wire
	// SnapshotEntries is how many entries lie between two cuts of a replica's log, and
	// KeptEntries how many applied ones stay in it then (cut.go); 0 is the default of both.
	SnapshotEntries, KeptEntries uint64
	// KeptBytes is how much is kept of all logs for followers that lag (cut.go); 0 is the default.
	KeptBytes uint64
	// Observer hears what the replicas do; nil is for nobody.
	Observer Observer
	// Stall, if not nil, is called between two steps of a rule, where a goroutine may lose
	// its processor for any time, with a name of the place and no lock of the replica held.
	// It is there for tests alone: simulations sleep in it.
	Stall func(shardID uint64, at string)
	// LogWrites is told of the writes of the log; may be nil.
	LogWrites *LogWrites
	// Log receives what operators should see.
	Log *slog.Logger
	// Fatal is told of an error after which the process must end at once, as that of a log
	// that can't be written; it ends it and does not return. nil panics.
	Fatal func(error)
}

// Host runs the replicas of one process that share a Raft log.
type Host struct {
	cfg    HostConfig
	nh     *dragonboat.NodeHost
	logs   *logStore
	events *eventQueue
	inbox  *inbox
	// origin and sequence make command ids.
	origin   uint64
	sequence atomic.Uint64
	// since is the last time that the oracle has named (together.go), nil before the first.
	since atomic.Pointer[Since]

	// turns are those of the batches with numbers.
	turns turns

	stop chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// replicas by shard, protected by mu.
	replicas map[uint64]*Replica
	// early holds leader reports of shards that are being started, protected by
	// mu.
	early map[uint64]Leader
}

// errNoHost is returned for the case that dragonboat fails to start without
// saying why.
var errNoHost = errors.New("raft host did not start")

// OpenHost opens the Raft log and starts the host. A log that can't be opened is
// reported with what to do.
func OpenHost(cfg HostConfig) (*Host, error) {
	setRaftLogger(cfg.Log, cfg.Fatal)
	if cfg.Observer == nil {
		cfg.Observer = unobserved{}
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, fmt.Errorf("draw origin: %w", err)
	}
	h := &Host{
		cfg:      cfg,
		events:   newEventQueue(),
		origin:   binary.BigEndian.Uint64(seed[:]),
		turns:    newTurns(),
		stop:     make(chan struct{}),
		replicas: make(map[uint64]*Replica),
		early:    make(map[uint64]Leader),
	}
	if err := prepareLog(cfg); err != nil {
		return nil, fmt.Errorf("open %s log: %w", cfg.Name, err)
	}
	logs := &logFactory{cfg: cfg}
	nh, err := dragonboat.NewNodeHost(h.nodeHostConfig(logs))
	if err == nil && nh == nil {
		err = errNoHost
	}
	if err != nil {
		return nil, fmt.Errorf("open %s log in %s: %w", cfg.Name, cfg.Dir, err)
	}
	h.nh, h.logs = nh, logs.store
	h.wg.Add(2)
	go h.dispatch()
	go h.tick()
	return h, nil
}

// raftFS returns the file system of the log.
func raftFS(cfg HostConfig) raftvfs.FS {
	if cfg.RaftFS == nil {
		return raftvfs.Default
	}
	return cfg.RaftFS
}

// prepareLog gives the log this host's name, and refuses one that is gone.
func prepareLog(cfg HostConfig) error {
	fs := raftFS(cfg)
	dir := fs.PathJoin(cfg.Dir, dragonboatDir)
	if cfg.Made {
		if _, err := fs.Stat(fs.PathJoin(dir, logOwner)); err != nil {
			return fmt.Errorf("%w: the log in %s is gone (%w); %s", ErrDisagree, cfg.Dir, err, remedy)
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("ask for host name: %w", err)
	}
	return nameHost(fs, dir, name)
}

func (h *Host) nodeHostConfig(logs config.LogDBFactory) config.NodeHostConfig {
	var transport config.TransportFactory = noPeers{}
	if h.cfg.Wire != nil {
		transport = wired{wire: h.cfg.Wire, log: h.cfg.Log}
	}
	h.inbox = &inbox{TransportFactory: transport, followers: followers{gap: h.election() / 2}, started: h.started}
	return config.NodeHostConfig{
		DeploymentID:        h.cfg.DeploymentID,
		NodeHostID:          h.cfg.NodeHostID,
		NodeHostDir:         raftFS(h.cfg).PathJoin(h.cfg.Dir, dragonboatDir),
		RTTMillisecond:      uint64(h.cfg.Tick.Milliseconds()),
		RaftAddress:         h.cfg.Address,
		MaxSendQueueSize:    128 << 20,
		MaxReceiveQueueSize: 64 << 20,
		RaftEventListener:   h.events,
		Expert: config.ExpertConfig{
			Engine: config.EngineConfig{
				ExecShards:     h.cfg.LogShards,
				CommitShards:   h.cfg.LogShards,
				ApplyShards:    2 * h.cfg.LogShards,
				SnapshotShards: 4,
				CloseShards:    2,
			},
			LogDB:               logConfig(h.cfg.LogShards),
			LogDBFactory:        logs,
			FS:                  h.cfg.RaftFS,
			TransportFactory:    h.inbox,
			NodeRegistryFactory: registryFactory{resolve: h.cfg.Resolve, streams: h.cfg.LogShards},
		},
	}
}

// logConfig is for dragonboat's own log store, which is not used. Dragonboat writes the number of
// logs down and refuses another.
func logConfig(shards uint64) config.LogDBConfig {
	c := config.GetTinyMemLogDBConfig()
	c.Shards = shards
	return c
}

// DB returns the Pebble that keeps the state of the replicas.
func (h *Host) DB() *pebble.DB { return h.cfg.DB }

// Log returns the logger for what operators should see.
func (h *Host) Log() *slog.Logger { return h.cfg.Log }

// EndOnPanic is deferred around what writes state. It tells HostConfig.Fatal of an error that
// a storage engine panics with, and lets other panics be.
func (h *Host) EndOnPanic(doing string) { endPanic(recover(), h.cfg.Fatal, doing) }

// nextID returns a command id that was never used.
func (h *Host) nextID() CommandID {
	return CommandID{Origin: h.origin, Sequence: h.sequence.Add(1)}
}

// ReplicaConfig names a replica and the shard's first members.
type ReplicaConfig struct {
	ShardID, ReplicaID uint64
	// Members are the first members' NodeHostIDs by replica id; the same map on
	// every one of them. None stands for a replica that joins: the shard's leader adds it, at first
	// without a vote (members.go).
	Members map[uint64]string
	// Machine applies the commands.
	Machine Machine
	// Leads is told of the terms served; may be nil.
	Leads Leadership
	// Oracle numbers the commands that need it; may be nil where none does.
	Oracle Oracle
	// Bind, if not nil, is given the replica before anything is applied or led.
	Bind func(*Replica)
	// Observe, if not nil, is told how long a command took to apply, and why it was
	// rejected. It must not block and must not keep the payload.
	Observe func(c Command, rejected error, took time.Duration)
	// Resolved, if not nil, is told that all keys have been promised up to a revision of the
	// oracle, before whoever asked is.
	Resolved func(rev int64)
	// Numbered, if not nil, is told that commands have got numbers up to rev, before they
	// are in the log. It must not block.
	Numbered func(rev int64)
}

const maxInMemoryLog = 256 << 20

// Start starts a replica and returns when its state is open. The replica may
// apply entries before Start returns.
func (h *Host) Start(c ReplicaConfig) (*Replica, error) {
	r := &Replica{
		shardID:   c.ShardID,
		replicaID: c.ReplicaID,
		prefix:    Prefix(c.ShardID, c.ReplicaID),
		host:      h,
		nh:        h.nh,
		session:   h.nh.GetNoOPSession(c.ShardID),
		machine:   c.Machine,
		leads:     c.Leads,
		oracle:    c.Oracle,
		syncer:    h.cfg.Syncer,
		fs:        h.cfg.StateFS,
		tempDir:   h.cfg.TempDir,
		log:       h.cfg.Log,
		fatal:     h.cfg.Fatal,
		observer:  h.cfg.Observer,
		observe:   c.Observe,
		resolved:  c.Resolved,
		numbered:  c.Numbered,
		kick:      make(chan struct{}, 1),
		changed:   make(chan struct{}),

		leaderless: time.Now(),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.over.renew(r.ctx)
	r.later.renew(r.ctx)
	r.confirmations.Join, r.confirmations.Ask, r.confirmations.Go = share.Same[struct{}], r.confirmOnce, r.goUntilClosed
	r.resolving.share.Join = func(a, b int64) int64 { return max(a, b) }
	r.resolving.share.Ask, r.resolving.share.Go = r.resolveOnce, r.goUntilClosed
	if c.Bind != nil {
		c.Bind(r)
	}
	birth, err := h.birthOf(c)
	if err != nil {
		return nil, fmt.Errorf("start shard %d: %w", c.ShardID, err)
	}
	held, err := h.checkReplica(r)
	if err != nil {
		return nil, fmt.Errorf("start shard %d: %w", c.ShardID, err)
	}
	if birth.joined {
		h.inbox.joining(r)
	}
	h.logs.hold(c.ShardID, c.ReplicaID, held)
	defer h.logs.hold(c.ShardID, c.ReplicaID, false)
	err = h.nh.StartOnDiskReplica(birth.members, birth.join, r.newStateMachine(h.cfg.DB), config.Config{
		ShardID:             c.ShardID,
		ReplicaID:           c.ReplicaID,
		CheckQuorum:         true,
		PreVote:             true,
		OrderedConfigChange: true,
		HeartbeatRTT:        h.cfg.HeartbeatTicks,
		ElectionRTT:         h.cfg.ElectionTicks,
		MaxInMemLogSize:     maxInMemoryLog,
		WaitReady:           true,
		IsNonVoting:         birth.joined,
	})
	if err != nil {
		return nil, fmt.Errorf("start shard %d: %w", c.ShardID, err)
	}
	// The mutex is held so that a report that comes now is not overtaken by the
	// early one.
	h.mu.Lock()
	defer h.mu.Unlock()
	h.replicas[c.ShardID] = r
	if early, ok := h.early[c.ShardID]; ok {
		r.leaderUpdated(early)
	}
	r.wg.Go(r.leadAlone)
	return r, nil
}

// birth is how a replica came to be.
type birth struct {
	// joined says that it was added to a shard that was there. Raft then has to be told at each start that
	// it was non-voting at first: its log may say so again, and Raft refuses that of a voter. It votes
	// all the same once it has been promoted.
	joined bool
	// join and members are for its first start: whether it joins, and the first members if it does not.
	join    bool
	members map[uint64]dragonboat.Target
}

// birthOf returns how a replica came to be. The log tells, unless it is made now.
func (h *Host) birthOf(c ReplicaConfig) (birth, error) {
	made, err := h.logs.GetBootstrapInfo(c.ShardID, c.ReplicaID)
	switch {
	case err == nil:
		return birth{joined: made.Join}, nil
	case !errors.Is(err, raftio.ErrNoBootstrapInfo):
		return birth{}, fmt.Errorf("read first members: %w", err)
	case len(c.Members) == 0:
		return birth{joined: true, join: true}, nil
	}
	return birth{members: maps.Clone(c.Members)}, nil
}

// replica returns the shard's replica, or keeps the report for its start.
func (h *Host) replica(shardID uint64, l Leader) *Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[shardID]
	if r == nil {
		h.early[shardID] = l
	}
	return r
}

// dispatch hands dragonboat's reports to the replicas.
func (h *Host) dispatch() {
	defer h.wg.Done()
	for {
		select {
		case <-h.stop:
			return
		case <-h.events.ready:
		}
		for _, i := range h.events.take() {
			l := Leader{ReplicaID: i.LeaderID, Term: i.Term}
			if r := h.replica(i.ShardID, l); r != nil {
				r.leaderUpdated(l)
			}
		}
	}
}

// LeadershipTick is how often the replicas that lead see to what they keep in
// memory. A process that wakes more than two of them late takes itself for one
// that was stopped, and ends no lease for a while.
const LeadershipTick = 200 * time.Millisecond

// tick gives every leader's memory its clock.
func (h *Host) tick() {
	defer h.wg.Done()
	t := time.NewTicker(LeadershipTick)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
		}
		h.mu.Lock()
		replicas := make([]*Replica, 0, len(h.replicas))
		for _, r := range h.replicas {
			replicas = append(replicas, r)
		}
		h.mu.Unlock()
		for _, r := range replicas {
			r.tick()
			r.keepLogShort()
		}
	}
}

// started reports whether a replica has been started, and the host is not closing.
func (h *Host) started(shardID, replicaID uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[shardID]
	return r != nil && r.replicaID == replicaID
}

// Close stops all replicas and closes the log. Calls that wait get ErrStopped or
// ErrTimeout.
func (h *Host) Close() {
	close(h.stop)
	h.wg.Wait()
	h.mu.Lock()
	replicas := h.replicas
	h.replicas = nil
	h.mu.Unlock()
	for _, r := range replicas {
		r.close()
	}
	h.inbox.shut()
	h.nh.Close()
}

// eventQueue collects dragonboat's reports. Its callback never blocks and never
// calls dragonboat: a slow one would stall Raft, a calling one can deadlock.
type eventQueue struct {
	ready chan struct{}

	mu sync.Mutex
	// reports is protected by mu.
	reports []raftio.LeaderInfo
}

var _ raftio.IRaftEventListener = (*eventQueue)(nil)

func newEventQueue() *eventQueue { return &eventQueue{ready: make(chan struct{}, 1)} }

// LeaderUpdated queues one report.
func (q *eventQueue) LeaderUpdated(i raftio.LeaderInfo) {
	q.mu.Lock()
	q.reports = append(q.reports, i)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *eventQueue) take() []raftio.LeaderInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	reports := q.reports
	q.reports = nil
	return reports
}
