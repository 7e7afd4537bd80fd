// Package node puts a node together: its data directory, the Raft hosts, the
// system shard, the data shards, the router and the API. The binary and the
// tests that need a whole node in their process share it.
package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/members"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// Options are what a node needs beside its configuration.
type Options struct {
	// Config is the node's configuration.
	Config *config.Config
	// Log receives what operators should see.
	Log *slog.Logger
	// StateFS and RaftFS are the file systems of the state and of the Raft logs;
	// nil is the operating system's.
	StateFS vfs.FS
	RaftFS  raftvfs.FS
	// SnapshotEntries and KeptEntries are raft.HostConfig's.
	SnapshotEntries, KeptEntries uint64
	// Listeners serve clients without TLS, and PeerListeners other nodes; nil opens those
	// of the configuration.
	Listeners, PeerListeners []net.Listener
	// Fatal is told of an error after which the process must end at once, such as a log that
	// can't be written. It ends it and does not return; nil panics.
	Fatal func(error)
	// Stop, when it is closed, ends a start that still waits for other nodes; may be nil.
	Stop <-chan struct{}
}

// Node is a running node.
type Node struct {
	log       *slog.Logger
	listeners []listener
	// peerListeners are where other nodes come in. The mesh closes them once there is one.
	peerListeners []listener
	// tls is what secure listeners serve with, nil where there is none.
	tls        *tls.Config
	dir        *datadir.Dir
	state      *pebble.DB
	membership *membership
	peers      *peers
	system     *raft.Host
	data       *raft.Host
	shards     map[uint64]*shard.Data
	cluster    *system.Cluster
	tokens     auth.Tokens
	router     *router.Router
	// server is there, and serves, when the node has joined its cluster, or has waited for a
	// quorum for long.
	server *api.Server
	// probes are nil before they are served.
	probes     *probes
	compaction *compaction
	metrics    *metrics
	disk       *diskWatch
	sweeping   *sweeping
	journal    *journal
	// members is nil before the node serves.
	members *members.Driver
	// leaving is set when the node begins to stop, and removed when it hears that it was removed.
	leaving, removed atomic.Bool
	// admitting is the cluster that other nodes join through this one, nil before the system shard runs.
	admitting atomic.Pointer[system.Cluster]
	// followers are what follows the members, until giveUp is called.
	followers sync.WaitGroup
	// logWrites knows of a disk that hangs.
	logWrites       raft.LogWrites
	electionTimeout time.Duration
	// failed has room for the first failure; it is never closed. giveUp ends the start, and what follows the
	// members.
	failed chan error
	giveUp context.CancelCauseFunc
	// stateFailures counts the failures of the state's background work since the
	// last memtable was written.
	stateFailures atomic.Int64
	// served is closed when no listener is served any more; serving says that some were.
	served  chan struct{}
	serving bool
	// spool names the directory that backups are made in.
	spool func() string
}

// ErrStopped is returned by Start when Options.Stop was closed.
var ErrStopped = errors.New("stopped before it served")

// Start starts a node and returns when it serves. It waits for as many other nodes as it
// takes, without a limit of time.
func Start(o Options) (n *Node, err error) {
	n = &Node{log: o.Log, listeners: plain(o.Listeners), peerListeners: plain(o.PeerListeners), shards: make(map[uint64]*shard.Data), failed: make(chan error, 1), served: make(chan struct{})}
	n.spool, n.metrics = os.TempDir, newMetrics()
	ctx, giveUp := context.WithCancelCause(context.Background())
	n.giveUp = giveUp
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case <-o.Stop:
			giveUp(ErrStopped)
		case <-started:
		}
	}()
	defer func() {
		if err != nil {
			if n.server != nil {
				stopping, cancel := context.WithTimeout(context.Background(), 0)
				defer cancel()
				n.stopServing(stopping)
			}
			err = errors.Join(err, n.close())
		}
	}()
	if n.listeners == nil {
		if n.listeners, err = listen(o.Config); err != nil {
			return n, err
		}
	}
	if n.peerListeners == nil {
		if n.peerListeners, err = listenPeers(o.Config); err != nil {
			return n, err
		}
	}
	if o.StateFS == nil {
		o.StateFS = vfs.Default
		n.spool = func() string { return n.dir.Temp() }
	}
	dir := func(o *Options) error { return n.openDir(ctx, o) }
	shards := func(o *Options) error { return n.openShards(ctx, o) }
	verify := func(o *Options) error { return n.peers.verify(ctx, o) }
	others := func(o *Options) error { return n.startWithOthers(ctx, o) }
	for _, step := range []func(*Options) error{
		dir, n.sayStarting, n.openTLS, n.openState, n.loadBackup, n.openMesh, n.openHosts, n.finishDir, n.openProbes, shards, verify, n.openServer, others,
	} {
		if err := step(&o); err != nil {
			return n, n.explain(err)
		}
	}
	if o.Config.CompactionPeriod > 0 || o.Config.CompactionRevisions > 0 {
		n.compaction = startCompaction(compactionConfig{
			Store: n.router, Period: o.Config.CompactionPeriod, Revisions: o.Config.CompactionRevisions, Log: o.Log,
			Leads: func() bool { return n.cluster.Leader() == n.cluster.MemberID() },
		})
	}
	n.watchDisk(o.StateFS)
	n.sweeping = &sweeping{compacted: n.cluster.Compacted, sweep: n.router.SweepTo, log: n.log}
	n.sweeping.start()
	n.journal = n.openJournal()
	n.journal.start()
	if err = n.serve(); err != nil {
		return n, err
	}
	n.sayServing()
	return n, nil
}

// startWithOthers begins what the node does with the others while it serves, and waits until it may serve.
func (n *Node) startWithOthers(ctx context.Context, o *Options) error {
	n.resume(ctx)
	n.peers.start(o.Config)
	n.members = n.driveMembers()
	n.followers.Go(func() { n.handOverWhenLeaving(ctx) })
	return n.awaitShapes(ctx)
}

// watchDisk stops writes before the disk is full.
func (n *Node) watchDisk(fs vfs.FS) {
	self := n.cluster.MemberID()
	n.disk = &diskWatch{
		usage: func() (vfs.DiskUsage, error) { return fs.GetDiskUsage(n.dir.State()) },
		raised: func() bool {
			return slices.ContainsFunc(n.cluster.Alarms(), func(a *pb.AlarmMember) bool {
				return a.MemberID == self && a.Alarm == pb.AlarmType_NOSPACE
			})
		},
		raise: func(ctx context.Context) error {
			_, err := n.cluster.RaiseAlarm(ctx, self, pb.AlarmType_NOSPACE)
			return err
		},
		log: n.log,
	}
	n.disk.start()
}

func (n *Node) openDir(ctx context.Context, o *Options) error {
	self, ok := o.Config.InitialCluster[o.Config.Name]
	if !ok {
		return fmt.Errorf("initial cluster does not name node %q", o.Config.Name)
	}
	var join func(string) (datadir.Identity, error)
	if o.Config.ClusterState == config.ExistingCluster {
		join = func(instance string) (datadir.Identity, error) { return n.joinCluster(ctx, o, instance) }
	}
	var err error
	n.dir, err = datadir.Open(datadir.Config{
		FS: o.StateFS, Path: o.Config.DataDir, LogShards: uint64(o.Config.LogShards),
		Join: join, Former: o.Config.EtcdDataDir, New: newIdentity(o.Config, self, ""),
	})
	return err
}

// newIdentity is that of a node that is made now, in a cluster that its token, and salt where it is restored, keep apart from
// others.
func newIdentity(c *config.Config, self types.URLs, salt string) datadir.Identity {
	return datadir.Identity{
		NodeID:       memberID(sortedURLs(self), c.ClusterToken),
		DeploymentID: deploymentID(c.ClusterToken, salt),
		PeerSecret:   peerSecret(c.ClusterToken, salt),
		JoinSecret:   joinSecret(c.ClusterToken, salt),
		Salt:         salt,
		Nodes:        firstNodes(c),
		LogShards:    defaultLogShards(),
	}
}

// defaultLogShards is the number of workers that write the log, by cores. One makes the largest
// groups for each fsync; more pay only where there are cores for them.
func defaultLogShards() uint64 {
	switch cores := runtime.NumCPU(); {
	case cores <= 4:
		return 1
	case cores <= 8:
		return 2
	case cores <= 16:
		return 4
	default:
		return 8
	}
}

// Sizes of the state's Pebble. What is hot is small; what is cold is on disk.
const (
	stateCache    = 16 << 20
	stateMemtable = 8 << 20
)

func (n *Node) openState(o *Options) error {
	cache := pebble.NewCache(stateCache)
	defer cache.Unref()
	options := raft.StateOptions(o.StateFS, pebbleLogger{log: o.Log, fatal: o.Fatal})
	options.Cache, options.MemTableSize = cache, stateMemtable
	options.EventListener = &pebble.EventListener{
		BackgroundError: n.stateFailed, FlushEnd: n.stateFlushed, DataCorruption: n.stateDamaged,
	}
	db, err := pebble.Open(n.dir.State(), options)
	if err != nil {
		return fmt.Errorf("open state in %s: %w", n.dir.State(), err)
	}
	n.state = db
	return nil
}

// flushTimeout bounds how long a node that stops writes the state, so that less is to be applied again at its next start. A disk
// that fails may hold that up.
const flushTimeout = 5 * time.Second

// closeState writes the state, in which nothing changes any more, and closes it.
func (n *Node) closeState() error {
	flushed, err := n.state.AsyncFlush()
	if err == nil {
		select {
		case <-flushed:
		case <-time.After(flushTimeout):
		}
	}
	return errors.Join(err, n.state.Close())
}

// maxStateFailures is how many times in a row the state's background work may
// fail before the node gives up on its disk.
const maxStateFailures = 10

// stateFailed is told of each failure to write the state in the background. Pebble
// tries again at once, and for ever.
func (n *Node) stateFailed(err error) {
	switch n.stateFailures.Add(1) {
	case 1:
		n.log.Error("the state can't be written; it is tried again", slog.String("error", err.Error()))
	case maxStateFailures:
		n.fail(fmt.Errorf("write state in %s: %w; check the disk and free space, then start the node again", n.dir.State(), err))
	}
}

// damaged says what to do where the state can't be read.
const damaged = "check the disk, " + datadir.Lost

// errDamaged is returned for a state that can't be read.
var errDamaged = errors.New("data is damaged")

// stateDamaged is told of each part of the state whose checksum is wrong.
func (n *Node) stateDamaged(i pebble.DataCorruptionInfo) { n.fail(n.damage(i.Details)) }

// damage says what to do about a state that can't be read. Details that Pebble puts on
// further lines are left out.
func (n *Node) damage(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%w: state in %s: %s; %s", errDamaged, n.dir.State(), text, damaged)
}

// explain says what to do about an error that a damaged state led to.
func (n *Node) explain(err error) error {
	if pebble.IsCorruptionError(err) || errors.Is(err, mvcc.ErrCorrupt) {
		return n.damage(err)
	}
	return err
}

// stateFlushed is told of each attempt to write a memtable.
func (n *Node) stateFlushed(i pebble.FlushInfo) {
	if i.Err == nil {
		n.stateFailures.Store(0)
	}
}

// diskStuck reports whether a write of a log hangs for longer than it takes others to miss a
// leader.
func (n *Node) diskStuck() bool { return n.logWrites.Stuck(2 * n.electionTimeout) }

// unfit reports whether this node must take over nothing.
func (n *Node) unfit() bool { return n.leaving.Load() || n.membership.leaving() || n.diskStuck() }

func (n *Node) openHosts(o *Options) error {
	n.electionTimeout = o.Config.ElectionTimeout
	id := n.dir.Identity()
	syncer := raft.NewSyncer(n.state)
	open := func(name string, logs uint64) (*raft.Host, error) {
		c := raft.HostConfig{
			Dir: n.dir.Raft(name), Made: id.Whole, Name: name, NodeHostID: nodeHostID(name, id.NodeID), Address: name,
			// The wire calls hosts by their NodeHostIDs.
			Resolve:      func(target string) (string, bool) { return target, true },
			DeploymentID: id.DeploymentID, LogShards: logs, HeartbeatTicks: 1,
			DB: n.state, Syncer: syncer, StateFS: o.StateFS, TempDir: n.dir.Temp(), RaftFS: o.RaftFS,
			SnapshotEntries: o.SnapshotEntries, KeptEntries: o.KeptEntries,
			Observer: n.metrics, Log: o.Log, Fatal: o.Fatal, LogWrites: &n.logWrites,
		}
		n.peers.connectHost(&c, o.Config)
		return raft.OpenHost(c)
	}
	var err error
	if n.system, err = open("system", 1); err != nil {
		return err
	}
	n.data, err = open("data", id.LogShards)
	return err
}

// finishDir says that the first start has made all files: from here on shards put into
// them what must not be lost.
func (n *Node) finishDir(*Options) error { return n.dir.Finish() }

// requestTimeout is etcd's: five seconds and what two elections take.
func requestTimeout(c *config.Config) time.Duration { return 5*time.Second + 2*c.ElectionTimeout }

// resume has clients shown no less than before the start.
func (n *Node) resume(ctx context.Context) {
	if err := n.router.Resume(ctx); err != nil {
		n.log.Warn("serializable reads may name older revisions than before the start", slog.String("error", err.Error()))
	}
}

// openServer makes the API, unless it was made early.
func (n *Node) openServer(o *Options) error {
	if n.server != nil {
		return nil
	}
	c := o.Config
	n.router = router.New(router.Config{
		System: n.cluster, Order: n.cluster, UserStore: n.cluster, Leaders: n.peers.leaders(), Self: n.membership.self, Shards: n.shards,
		WideWrites: c.WritesOverShards, Timeout: requestTimeout(c), Compactor: n.compactState,
	})
	for _, d := range n.shards {
		d.Connect(n.router)
	}
	if err := n.metrics.follow(n.cluster, n.shards); err != nil {
		return err
	}
	if err := n.metrics.know(n.membership, n.peers.reached); err != nil {
		return err
	}
	view := services{Router: n.router, node: n}
	var err error
	n.server, err = api.NewServer(api.Config{
		Store: view, Leases: n.router, Watches: view, Cluster: clusterService{n.cluster, n, c.StrictReconfigCheck}, Maintenance: view,
		Users: n.router, Peers: n.peers.waiting(), Tokens: n.tokens, BcryptCost: c.BcryptCost, CertificateUsers: c.ClientTLS.ClientCertAuth,
		DisableGateway: !c.EnableGateway, AllowedOrigins: c.CORS, AllowedHosts: c.HostWhitelist,
		Log: o.Log, Metrics: n.metrics.registry, SnapshotDir: n.spool(),
		MaxTxnOps: c.MaxTxnOps, MaxRequestBytes: c.MaxRequestBytes, MaxConcurrentStreams: c.MaxConcurrentStreams,
		QuotaBytes: c.QuotaBytes, ElectionTimeout: c.ElectionTimeout, RequestTimeout: requestTimeout(c),
		ProgressInterval: c.ProgressInterval, PingMinTime: c.PingMinTime, PingInterval: c.PingInterval,
		PingTimeout: c.PingTimeout, EnablePprof: c.EnablePprof, ExtensiveMetrics: c.Metrics == config.ExtensiveMetrics,
	})
	if err == nil {
		n.answerAll()
	}
	return err
}

func (n *Node) compactState(ctx context.Context) error {
	return n.state.Compact(ctx, []byte{0}, []byte{0xff}, true)
}

// serve serves clients, unless they are served already.
func (n *Node) serve() error {
	if n.serving {
		return nil
	}
	if err := n.probes.become(n.server); err != nil {
		return err
	}
	n.serving = true
	var serving sync.WaitGroup
	for _, l := range n.listeners {
		if l.traffic == api.MetricsTraffic {
			continue // the probes'
		}
		serving.Go(func() {
			if err := n.serveListener(l); !errors.Is(err, api.ErrServerStopped) {
				n.fail(err)
			}
		})
	}
	go func() {
		serving.Wait()
		close(n.served)
	}()
	return nil
}

// stopServing ends the API, as Stop does.
func (n *Node) stopServing(ctx context.Context) {
	n.server.Stop(ctx)
	if n.serving {
		<-n.served
	}
}

// fail reports that the node can't go on.
func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default: // one failure is enough
	}
	n.giveUp(err)
}

func (n *Node) serveListener(l listener) error {
	if l.secure {
		return n.server.ServeTLS(l, l.traffic, n.tls)
	}
	return n.server.Serve(l, l.traffic)
}

// Addrs returns the addresses that clients are served on: those of the client URLs,
// then those of HTTP and of metrics alone.
func (n *Node) Addrs() []net.Addr {
	addrs := make([]net.Addr, 0, len(n.listeners))
	for _, l := range n.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// Failed yields an error when the node can't go on and should be stopped.
func (n *Node) Failed() <-chan error { return n.failed }

// removedDrain bounds how long calls of clients may finish at a node that was removed: those that it has to ask others for can't. A removal
// that was asked for at the node itself is answered.
const removedDrain = 10 * memberPoll

// Stop ends the node: what it leads is handed over, and calls that run may finish while
// ctx lasts.
func (n *Node) Stop(ctx context.Context) error {
	n.leaving.Store(true)
	if n.removed.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, removedDrain)
		defer cancel()
	}
	n.peers.leave(ctx)
	n.stopServing(ctx)
	if n.cluster != nil {
		// Numbers are resumed by the next term: this process hands out no more.
		releasing, cancel := context.WithTimeout(ctx, n.electionTimeout)
		n.cluster.Release(releasing)
		cancel()
	}
	return n.close()
}

// close gives back whatever the node holds, in the opposite order of its start.
func (n *Node) close() error {
	var errs []error
	if n.compaction != nil {
		n.compaction.close()
	}
	if n.disk != nil {
		n.disk.close()
	}
	if n.probes != nil {
		now, cancel := context.WithTimeout(context.Background(), 0)
		n.probes.close(now)
		cancel()
	}
	if !n.serving {
		for _, l := range n.listeners {
			if n.probes == nil || l.traffic != api.MetricsTraffic {
				errs = append(errs, l.Close())
			}
		}
	}
	if n.peers == nil {
		for _, l := range n.peerListeners {
			errs = append(errs, l.Close())
		}
	}
	if n.sweeping != nil {
		n.sweeping.close()
	}
	if n.journal != nil {
		n.journal.close()
	}
	if n.members != nil {
		n.members.Close()
	}
	n.giveUp(ErrStopped)
	n.followers.Wait()
	if n.peers != nil {
		n.peers.stop()
	}
	if n.router != nil {
		n.router.Close()
	}
	if n.peers != nil {
		n.peers.disconnect()
	}
	for _, h := range []*raft.Host{n.data, n.system} {
		if h != nil {
			h.Close()
		}
	}
	for _, d := range n.shards {
		d.Close()
	}
	if n.state != nil {
		errs = append(errs, n.closeState())
	}
	if n.dir != nil {
		errs = append(errs, n.dir.Close())
	}
	return errors.Join(errs...)
}
