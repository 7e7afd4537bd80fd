package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lease"
)

// crashable is a node on file systems that lose what was not synced.
type crashable struct {
	t     *testing.T
	rnd   *rand.Rand
	state *vfs.MemFS
	raft  *raftvfs.MemFS
	node  *Node
	// splits are the keys at which the node's keys are divided among shards.
	splits [][]byte
	// snapshots is how many entries lie between two snapshots; 0 is the default.
	snapshots uint64
}

func (c *crashable) start() {
	c.t.Helper()
	c.node = startNode(c.t, c.state, c.raft, func(o *Options) {
		o.Config.InitialSplits, o.SnapshotEntries, o.KeptEntries = c.splits, c.snapshots, c.snapshots/4
	})
}

func startNode(t *testing.T, state vfs.FS, raft raftvfs.FS, change ...func(*Options)) *Node {
	t.Helper()
	cfg := parsed(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Config: cfg, StateFS: state, RaftFS: raft, Listeners: []net.Listener{l},
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	for _, f := range change {
		f(&o)
	}
	n, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *crashable) stop() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.node.Stop(ctx); err != nil {
		c.t.Error(err)
	}
}

// crash takes the file systems as a power cut would leave them now, and stops
// the node, whose further writes are lost. The state is taken first: the log may
// be ahead of it, as it is on a disk, never behind.
func (c *crashable) crash() {
	percent := c.rnd.IntN(101)
	state := c.state.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(c.rnd.Uint64(), 1))})
	c.raft.SetIgnoreSyncs(true)
	c.stop()
	c.raft.ResetToSyncedState()
	c.raft.SetIgnoreSyncs(false)
	c.state = state
}

// writer puts rising numbers into a key of its own, one after the other.
type writer struct {
	key string
	// lease is what the key hangs on.
	lease atomic.Int64
	// tried and acked are the last number that was sent and acknowledged.
	tried, acked atomic.Int64
	// rev is the revision of the last acknowledgement.
	rev atomic.Int64
}

func (w *writer) run(n *Node, crashed *atomic.Bool) {
	for !crashed.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		next := w.tried.Add(1)
		resp, err := n.router.Put(ctx, &pb.PutRequest{
			Key: []byte(w.key), Value: []byte(strconv.FormatInt(next, 10)), Lease: w.lease.Load(),
		})
		cancel()
		if err != nil || crashed.Load() {
			return
		}
		w.acked.Store(next)
		w.rev.Store(resp.Header.Revision)
	}
}

// check compares the key with what the writer knows and lets the writer go on
// from there.
func (w *writer) check(t *testing.T, n *Node) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := n.router.Range(ctx, &pb.RangeRequest{Key: []byte(w.key)})
	if err != nil {
		t.Fatal(err)
	}
	if w.acked.Load() > 0 && len(resp.Kvs) == 0 {
		t.Fatalf("%s is gone, %d was acknowledged", w.key, w.acked.Load())
	}
	if resp.Header.Revision < w.rev.Load() {
		t.Errorf("revision %d, %d was acknowledged", resp.Header.Revision, w.rev.Load())
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	kv := resp.Kvs[0]
	got, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if got < w.acked.Load() || got > w.tried.Load() {
		t.Errorf("%s = %d, acknowledged %d, tried %d", w.key, got, w.acked.Load(), w.tried.Load())
	}
	// A number that was tried, lost and tried again under the next one leaves a
	// gap; one applied twice would raise the version above the number.
	if kv.Version > got {
		t.Errorf("%s has version %d at number %d: something applied twice", w.key, kv.Version, got)
	}
	return resp.Header.Revision
}

// Whatever was acknowledged is there after a power cut at any moment, leases and
// alarms among it, revisions go on and nothing applies twice.
func TestPowerCuts(t *testing.T) {
	for name, splits := range map[string][][]byte{
		"one shard":   nil,
		"four shards": {[]byte("dir/2"), []byte("dir/4"), []byte("dir/6")},
	} {
		t.Run(name, func(t *testing.T) { cutPower(t, splits) })
	}
}

// crashSeed returns the seed of a test, which is printed.
func crashSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LATCHKEY_CRASH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("replay with LATCHKEY_CRASH_SEED=%d", seed)
	return seed
}

func cutPower(t *testing.T, splits [][]byte) {
	t.Helper()
	seed := crashSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := &crashable{t: t, rnd: rnd, state: vfs.NewCrashableMem(), raft: raftvfs.NewStrictMem(), splits: splits}
	writers := make([]*writer, 8)
	for i := range writers {
		writers[i] = &writer{key: fmt.Sprintf("dir/%d", i)}
	}
	var leases []int64
	c.start()
	for round := range 8 {
		var crashed atomic.Bool
		var wg sync.WaitGroup
		for _, w := range writers {
			wg.Go(func() { w.run(c.node, &crashed) })
		}
		if granted, err := c.node.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1000}); err != nil {
			t.Fatal(err)
		} else {
			leases = append(leases, granted.ID)
			for _, w := range writers {
				w.lease.Store(granted.ID)
			}
		}
		if _, err := c.node.cluster.RaiseAlarm(t.Context(), uint64(round+1), pb.AlarmType_NOSPACE); err != nil {
			t.Fatal(err)
		}
		if round%3 == 1 {
			if _, err := c.node.router.Compact(t.Context(), &pb.CompactionRequest{Revision: c.node.router.Revision()}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		doomed := int64(0)
		if round%2 == 1 {
			doomed = leases[len(leases)-1]
			wg.Go(func() { c.revoke(doomed) })
			time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
		}
		crashed.Store(true)
		c.crash()
		wg.Wait()
		c.start()
		if doomed != 0 && ended(t, c.node, doomed, writers) {
			leases = leases[:len(leases)-1]
		}
		for _, w := range writers {
			w.check(t, c.node)
		}
		checkLeases(t, c.node, leases)
		if alarms := c.node.cluster.Alarms(); len(alarms) != round+1 {
			t.Errorf("%d alarms, %d were raised", len(alarms), round+1)
		}
		if t.Failed() {
			break
		}
	}
	c.stop()
}

// revoke ends a lease for which nobody waits.
func (c *crashable) revoke(id int64) {
	n := c.node
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := n.router.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id}); err != nil {
		c.t.Logf("revoke %x: %v", id, err)
	}
}

// ended reports whether a lease has ended whose end was cut by a crash. Then it has
// ended in all shards, or goes on to: no key hangs on it, and its writers begin anew.
func ended(t *testing.T, n *Node, id int64, writers []*writer) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := n.router.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id})
	if !errors.Is(err, lease.ErrNotFound) {
		if err != nil {
			t.Errorf("lease %x after a cut end: %v", id, err)
		}
		return false
	}
	resp, err := n.router.Range(ctx, &pb.RangeRequest{Key: []byte("dir/"), RangeEnd: []byte("dir0")})
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, kv := range resp.Kvs {
		there[string(kv.Key)] = true
		if kv.Lease == id {
			t.Errorf("%s outlives its lease %x", kv.Key, id)
		}
	}
	for _, w := range writers {
		if !there[w.key] {
			w.acked.Store(0)
		}
	}
	return true
}

func checkLeases(t *testing.T, n *Node, leases []int64) {
	t.Helper()
	for _, id := range leases {
		life, err := n.router.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id})
		if err != nil {
			t.Fatalf("lease %d: %v", id, err)
		}
		if life.GrantedTTL != 1000 || life.TTL < 900 {
			t.Errorf("lease %d has %d of %d s after a restart", id, life.TTL, life.GrantedTTL)
		}
	}
}
