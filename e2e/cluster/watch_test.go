package cluster

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// W19: watches whose clients go on to another node when theirs dies miss nothing and see
// nothing twice (shubhamranjan/dotnet-etcd#310, microsoft/etcd3#33, sensu/sensu-go#3101,
// 4564).
func TestWatchesSwitchNodesOverCrashes(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		var clients []*clientv3.Client
		for range 3 {
			clients = append(clients, c.all())
		}
		report := &faults.Report{}
		chains := faults.NewChains(report, 8, clients)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { chains.Run(ctx) })
		var all []*follower
		for _, client := range clients {
			f := &follower{last: make(map[string]int64)}
			all = append(all, f)
			go f.follow(t, client)
		}
		for range 5 {
			node := c.mostWatched()
			c.must(c.Nodes[node].Kill())
			pause(t.Context(), time.Duration(harness.Sized(1, 3))*time.Second)
			c.must(c.Nodes[node].Launch())
			c.healthy()
		}
		cancel()
		running.Wait()
		chains.Check(t.Context())
		kept(t, report)
		final, err := clients[0].Get(c.bound(), "", clientv3.WithPrefix())
		c.must(err)
		for i, f := range all {
			c.until("watch "+strconv.Itoa(i), func(context.Context) error { return f.reached(final.Kvs) })
		}
		t.Logf("operations=%d", report.Operations.Load())
	})
}

// mostWatched returns the node that has the most watches.
func (c *cluster) mostWatched() (node int) {
	c.t.Helper()
	most := -1.0
	c.until("watches", func(ctx context.Context) error {
		for i, n := range c.Nodes {
			watches, err := n.Metric(ctx, "etcd_debugging_mvcc_watcher_total")
			if err != nil {
				return err
			}
			if watches > most {
				node, most = i, watches
			}
		}
		return nil
	})
	return node
}

// follower watches all keys, whose values must count up.
type follower struct {
	mu sync.Mutex
	// last is the last number of each key. Protected by mu.
	last map[string]int64
}

func (f *follower) follow(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for r := range client.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		if err := r.Err(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		f.mu.Lock()
		for _, e := range r.Events {
			n, err := strconv.ParseInt(string(e.Kv.Value), 10, 64)
			if key := string(e.Kv.Key); err != nil || n != f.last[key]+1 {
				t.Errorf("%s is %s after %d", key, e.Kv.Value, f.last[key])
			}
			f.last[string(e.Kv.Key)] = n
		}
		f.mu.Unlock()
	}
}

// reached says what of some keys' values the watch has not seen.
func (f *follower) reached(kvs []*mvccpb.KeyValue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kv := range kvs {
		if seen := f.last[string(kv.Key)]; strconv.FormatInt(seen, 10) != string(kv.Value) {
			return fmt.Errorf("%s is %s, seen was %d", kv.Key, kv.Value, seen)
		}
	}
	return nil
}

// C03: on a node that is cut off a watch that requires a leader ends soon, so that its
// client resumes elsewhere; one that does not is silent, and delivers everything when the
// node is back (7247, 7593, kubernetes/kubernetes#89488, cilium/cilium#23590,
// portworx/kvdb#66).
func TestWatchesOfNodeCutOff(t *testing.T) {
	kinds := require(t, "isolate")
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, kinds)
		node := c.leader()
		other := c.clients[(node+1)%3]
		head, err := other.Get(c.bound(), "head")
		c.must(err)
		from := head.Header.Revision + 1
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		strict := openTape(clientv3.WithRequireLeader(ctx), t, c.clients[node], from)
		patient := openTape(ctx, t, c.clients[node], from)
		var wrote []int64
		write := func() {
			for _, key := range inShards(shards, "watched") {
				// A write may be carried out although it is not answered: so none is repeated
				// that way before the cluster has found its leaders.
				c.until("leaders", func(ctx context.Context) error { _, err := other.Get(ctx, key); return err })
				r, err := other.Put(c.bound(), key, "")
				c.must(err)
				wrote = append(wrote, r.Header.Revision)
			}
		}
		write()
		strict.want(wrote, promptly)
		patient.want(wrote, promptly)

		c.must(c.gear.Network.Isolate(node))
		cut := time.Now()
		before := len(wrote)
		write()
		const soon = 3*time.Second + 2*promptly // three election timeouts
		if err := strict.end(soon); status.Convert(err).Message() != status.Convert(rpctypes.ErrGRPCNoLeader).Message() || !unavailable(err) {
			t.Errorf("the watch that requires a leader ended with %v", err)
		}
		t.Logf("the watch that requires a leader ended after %v", time.Since(cut))
		openTape(clientv3.WithRequireLeader(ctx), t, other, wrote[before-1]+1).want(wrote[before:], promptly)
		for end := cut.Add(time.Duration(harness.Sized(6, 30)) * time.Second); time.Now().Before(end); pause(ctx, time.Second) {
			write()
		}
		patient.silent()
		c.must(c.gear.Network.Heal())
		patient.want(wrote[before:], patience)
	})
}

// tape is one raw watch stream, recorded.
type tape struct {
	t       *testing.T
	answers chan *pb.WatchResponse
	ended   chan error
}

// openTape watches all keys from a revision.
func openTape(ctx context.Context, t *testing.T, c *clientv3.Client, from int64) *tape {
	t.Helper()
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from},
		}})
	}
	if err == nil {
		_, err = stream.Recv() // created
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &tape{t: t, answers: make(chan *pb.WatchResponse, 1000), ended: make(chan error, 1)}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				w.ended <- err
				return
			}
			w.answers <- r
		}
	}()
	return w
}

// want reads the events of some revisions, and no other.
func (w *tape) want(revisions []int64, limit time.Duration) {
	w.t.Helper()
	late := time.After(limit)
	for len(revisions) > 0 {
		select {
		case r := <-w.answers:
			for _, e := range r.Events {
				if len(revisions) == 0 || e.Kv.ModRevision != revisions[0] {
					w.t.Fatalf("an event at %d, want those at %d", e.Kv.ModRevision, revisions)
				}
				revisions = revisions[1:]
			}
		case err := <-w.ended:
			w.t.Fatalf("the watch ended with %v, want events at %d", err, revisions)
		case <-late:
			w.t.Fatalf("no events at %d after %v", revisions, limit)
		}
	}
}

// end returns what the watch ends with.
func (w *tape) end(limit time.Duration) error {
	w.t.Helper()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(limit):
		w.t.Fatalf("the watch has not ended after %v", limit)
		return nil
	}
}

// silent sees that the watch has said nothing and goes on.
func (w *tape) silent() {
	w.t.Helper()
	select {
	case r := <-w.answers:
		w.t.Errorf("the watch of a node that is cut off says %v", r)
	case err := <-w.ended:
		w.t.Fatalf("the watch ended with %v", err)
	default:
	}
}
