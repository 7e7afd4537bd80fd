package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// S07: while a cluster is made, requests to any shard through any node wait or fail as
// unavailable, and in no other way, until they are served
// (oxia-db/oxia-client-java#318, apache/pulsar-helm-chart#551).
func TestRequestsWhileTheClusterIsMade(t *testing.T) {
	t.Parallel()
	for round := range harness.Sized(2, 20) {
		c := layCluster(t, 4, nil)
		var asking sync.WaitGroup
		for node := range c.Nodes {
			for _, key := range inShards(c.shards, "early") {
				asking.Go(func() { c.askEarly(node, key) })
			}
		}
		for i := range c.Nodes {
			c.must(c.Nodes[(i+round)%3].Launch())
			pause(t.Context(), 200*time.Millisecond)
		}
		asking.Wait()
		c.must(c.Close())
	}
}

// askEarly makes one kind of request after the other until a node has served them all.
func (c *cluster) askEarly(node int, key string) {
	conn := c.clients[node].ActiveConnection()
	kv, lease := pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	var id int64
	for what, ask := range map[string]func(context.Context) error{
		"range": func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
			return err
		},
		"range of all": func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
			return err
		},
		"put": func(ctx context.Context) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(key)})
			return err
		},
		"txn": func(ctx context.Context) error {
			_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
				RequestPut: &pb.PutRequest{Key: []byte(key)},
			}}}})
			return err
		},
		"grant": func(ctx context.Context) error {
			r, err := lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 60})
			id = r.GetID()
			return err
		},
	} {
		c.until(what, func(ctx context.Context) error {
			err := ask(ctx)
			if code := status.Code(err); code != codes.OK && code != codes.Unavailable && ctx.Err() == nil {
				c.t.Errorf("%s of %s at node %d: %v", what, key, node+1, err)
			}
			return err
		})
	}
	c.until("put with a lease", func(ctx context.Context) error {
		_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(key), Lease: id})
		if code := status.Code(err); code != codes.OK && code != codes.Unavailable && ctx.Err() == nil {
			c.t.Errorf("put of %s with a lease at node %d: %v", key, node+1, err)
		}
		return err
	})
}

// O01: the quota of the node that a write comes through stops writes at all nodes; the
// alarm names that node and outlasts a restart of all; what makes room goes on (9992,
// 17318, 11947, k3s-io/k3s#4787, beclab/Olares#3142).
func TestQuotaStopsAllNodes(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil, "--quota-backend-bytes=16777216")
		full := inShards(shards, "full")
		g, err := c.clients[0].Grant(c.bound(), 600)
		c.must(err)
		value := strings.Repeat("v", 1<<20)
		for i := 0; err == nil && i < 32; i++ {
			_, err = c.clients[1].Put(c.bound(), full[i%shards], value)
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("the put that is too much: %v", err)
		}
		self, err := c.clients[1].Status(c.bound(), c.Nodes[1].Client)
		c.must(err)
		alarmed := func() {
			t.Helper()
			c.grow(rpctypes.ErrNoSpace)
			for i, client := range c.clients {
				r, err := client.AlarmList(c.bound())
				c.must(err)
				if len(r.Alarms) != 1 || r.Alarms[0].Alarm != pb.AlarmType_NOSPACE || r.Alarms[0].MemberID != self.Header.MemberId {
					t.Errorf("node %d lists %v, want the alarm of %x", i+1, r.Alarms, self.Header.MemberId)
				}
			}
		}
		alarmed()
		for i, client := range c.clients {
			_, err = client.Get(c.bound(), full[0])
			c.must(err)
			_, err = client.Delete(c.bound(), full[i%shards])
			c.must(err)
			_, err = client.Txn(c.bound()).Then(clientv3.OpDelete(full[shards-1])).Commit()
			c.must(err)
			_, err = client.KeepAliveOnce(c.bound(), g.ID)
			c.must(err)
		}
		_, err = c.clients[2].Revoke(c.bound(), g.ID)
		c.must(err)
		for _, n := range c.Nodes {
			c.must(n.Kill())
		}
		for _, n := range c.Nodes {
			c.must(n.Launch())
		}
		for _, client := range c.clients { // with an alarm no node says that it is healthy
			c.until("read", func(ctx context.Context) error { _, err := client.Get(ctx, "k"); return err })
		}
		alarmed()
		for _, key := range full {
			_, err = c.clients[0].Delete(c.bound(), key)
			c.must(err)
		}
		c.must(c.compactHead(c.bound(), c.clients[0], clientv3.WithCompactPhysical()))
		for i, client := range c.clients {
			_, err = client.Defragment(c.bound(), c.Nodes[i].Client)
			c.must(err)
		}
		alarmed()
		_, err = c.clients[2].AlarmDisarm(c.bound(), &clientv3.AlarmMember{})
		c.must(err)
		c.grow(nil)
	})
}

// grow has every node answer all that makes a store grow with an error, or nil, as soon as
// it has heard why.
func (c *cluster) grow(want error) {
	c.t.Helper()
	for i, client := range c.clients {
		for what, call := range map[string]func(context.Context) error{
			"put": func(ctx context.Context) error { _, err := client.Put(ctx, "k", ""); return err },
			"txn with a put": func(ctx context.Context) error {
				_, err := client.Txn(ctx).Then(clientv3.OpPut("k", "")).Commit()
				return err
			},
			"grant": func(ctx context.Context) error { _, err := client.Grant(ctx, 60); return err },
		} {
			begin := time.Now()
			for err := call(c.bound()); !errors.Is(err, want); err = call(c.bound()) {
				if time.Since(begin) > promptly {
					c.t.Fatalf("%s at node %d: %v, want %v", what, i+1, err, want)
				}
				pause(c.t.Context(), 20*time.Millisecond)
			}
		}
	}
}

// compactHead compacts at the newest revision.
func (c *cluster) compactHead(ctx context.Context, client *clientv3.Client, opts ...clientv3.CompactOption) error {
	r, err := client.Get(ctx, "head")
	if err != nil {
		return err
	}
	if _, err = client.Compact(ctx, r.Header.Revision, opts...); errors.Is(err, rpctypes.ErrCompacted) {
		return nil // nothing was written since the last time
	}
	return err
}

// O13: nodes are defragmented and the store is compacted under load: no session is lost,
// only the node in question may be unavailable, and one that was killed meanwhile has what
// the others have (13313, 9222, 14685, gardener/etcd-backup-restore#1061).
func TestDefragmentUnderLoad(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		c.fillBytes(harness.Sized(6, 1024), harness.Sized(4<<10, 64<<10))
		l := &upkeepLoad{cluster: c}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for i := range c.Nodes {
			running.Go(func() { l.put(ctx, i) })
			l.keep(ctx, &running, i, 4, 5)
		}
		running.Go(func() {
			for ctx.Err() == nil {
				if err := c.compactHead(ctx, c.clients[0]); err != nil && ctx.Err() == nil && !unavailable(err) {
					t.Errorf("compact: %v", err)
				}
				pause(ctx, time.Duration(harness.Sized(500, 5000))*time.Millisecond)
			}
		})
		for i := range c.Nodes {
			l.busy.Store(int64(i))
			begin := time.Now()
			_, err := c.clients[i].Defragment(c.bound(), c.Nodes[i].Client)
			c.must(err)
			t.Logf("node %d was defragmented in %v", i+1, time.Since(begin))
		}
		pause(ctx, 6*time.Second)
		cancel()
		running.Wait()
		l.kept()
		c.killWhileDefragmenting(2)
		report := &faults.Report{}
		c.must(faults.Compare(t.Context(), report, c.clients))
		kept(t, report)
		t.Logf("%d puts, the slowest took %v", l.puts.Load(), time.Duration(l.slowest.Load()))
	})
}

// fillBytes writes so many MiB, each key twice, so that half of it can be removed.
func (c *cluster) fillBytes(mib, size int) {
	c.t.Helper()
	keys := inShards(c.shards, "filler")
	value := strings.Repeat("f", size)
	var wg sync.WaitGroup
	var next atomic.Int64
	most := mib << 20 / size
	ctx := c.bound()
	for w := range 24 {
		wg.Go(func() {
			for n := int(next.Add(1)); n <= most; n = int(next.Add(1)) {
				key := fmt.Sprintf("%s/%d", keys[n%len(keys)], n%(most/2))
				// It is no test yet: what a busy machine does not write in time is written again.
				for _, err := c.clients[w%3].Put(ctx, key, value); err != nil; _, err = c.clients[w%3].Put(ctx, key, value) {
					if ctx.Err() != nil {
						c.t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// upkeepLoad is what goes on while nodes are defragmented.
type upkeepLoad struct {
	*cluster
	// busy is the node that is defragmented.
	busy          atomic.Int64
	puts, slowest atomic.Int64
	leases        []clientv3.LeaseID
}

// put writes some 70 times a second through a node.
func (l *upkeepLoad) put(ctx context.Context, node int) {
	keys := inShards(l.shards, "load")
	for n := 0; ctx.Err() == nil; n++ {
		begin := time.Now()
		_, err := l.clients[node].Put(ctx, fmt.Sprintf("%s/%d", keys[n%len(keys)], n%100), "x")
		if err != nil && ctx.Err() == nil && (!unavailable(err) || l.busy.Load() != int64(node)) {
			l.t.Errorf("put through node %d while node %d is defragmented: %v", node+1, l.busy.Load()+1, err)
		}
		l.puts.Add(1)
		l.slowest.Store(max(l.slowest.Load(), int64(time.Since(begin))))
		pause(ctx, 14*time.Millisecond)
	}
}

// keep keeps leases alive through a node.
func (l *upkeepLoad) keep(ctx context.Context, running *sync.WaitGroup, node, n int, ttl int64) {
	l.t.Helper()
	for range n {
		g, err := l.clients[node].Grant(l.bound(), ttl)
		l.must(err)
		alive, err := l.clients[node].KeepAlive(ctx, g.ID)
		l.must(err)
		l.leases = append(l.leases, g.ID)
		running.Go(func() {
			for range alive { // until it is lost, or the load ends
			}
			if ctx.Err() == nil {
				l.t.Errorf("the client of node %d lost lease %x", node+1, g.ID)
			}
		})
	}
}

// kept sees that all leases are there.
func (l *upkeepLoad) kept() {
	l.t.Helper()
	r, err := l.clients[0].Leases(l.bound())
	l.must(err)
	for _, id := range l.leases {
		if !slices.ContainsFunc(r.Leases, func(s clientv3.LeaseStatus) bool { return s.ID == id }) {
			l.t.Errorf("lease %x is gone", id)
		}
	}
}

// killWhileDefragmenting kills a node that is being defragmented, and starts it again.
func (c *cluster) killWhileDefragmenting(node int) {
	c.t.Helper()
	c.fillBytes(harness.Sized(4, 256), harness.Sized(4<<10, 64<<10))
	c.must(c.compactHead(c.bound(), c.clients[node]))
	ended := make(chan error, 1)
	go func() {
		_, err := c.clients[node].Defragment(c.bound(), c.Nodes[node].Client)
		ended <- err
	}()
	pause(c.t.Context(), time.Duration(harness.Sized(20, 200))*time.Millisecond)
	c.must(c.Nodes[node].Kill())
	c.t.Logf("the killed defragmentation ended with %v", <-ended)
	c.must(c.Nodes[node].Launch())
	c.healthy()
}
