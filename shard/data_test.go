package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// The runs below are in fake time: seconds of waiting cost nothing, and a bound
// on time is exact.

func (nd *testNode) put(tb testing.TB, key string, id int64) int64 {
	tb.Helper()
	r, err := nd.data.Write(tb.Context(), nil, KindPut, &pb.PutRequest{Key: []byte(key), Value: []byte("v"), Lease: id})
	if err != nil {
		tb.Fatalf("put %s: %v", key, err)
	}
	return r.(*pb.PutResponse).Header.Revision
}

func (nd *testNode) grant(tb testing.TB, id, ttl int64) {
	tb.Helper()
	if _, err := nd.data.Write(tb.Context(), nil, KindLeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: ttl}); err != nil {
		tb.Fatalf("grant %d: %v", id, err)
	}
}

// count returns how many keys the node's newest state has under a prefix.
func (nd *testNode) count(tb testing.TB, key, end string) int64 {
	tb.Helper()
	v := nd.data.Store().View()
	defer v.Close()
	r, err := v.Range(tb.Context(), &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end), CountOnly: true})
	if err != nil {
		tb.Fatal(err)
	}
	return r.Count
}

// gone waits until a key is gone and returns how long that took.
func (nd *testNode) gone(tb testing.TB, key string) time.Duration {
	tb.Helper()
	start := time.Now()
	for nd.count(tb, key, "") > 0 {
		if time.Since(start) > 10*time.Minute {
			tb.Fatalf("%s does not go", key)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

// latest is how much later than its TTL a lease may end: a tick to notice, one
// for what was proposed before, and the election behind a leader's death.
const latest = 2 * raft.LeadershipTick

func TestLeaseEndsAfterItsTTLAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		for _, ttl := range []int64{2, 5, 60} {
			nd.grant(t, ttl, ttl)
			nd.put(t, "k", ttl)
			took := nd.gone(t, "k")
			if want := time.Duration(ttl) * time.Second; took < want-time.Millisecond || took > want+latest {
				t.Errorf("TTL %v: gone after %v", want, took)
			}
			if _, ok := nd.data.leases.Get(ttl); ok {
				t.Errorf("lease %d is still there", ttl)
			}
		}
	})
}

func TestRenewedLeaseLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.grant(t, 1, 5)
		nd.put(t, "k", 1)
		for range 20 {
			time.Sleep(4 * time.Second)
			if ttl, err := nd.data.Renew(t.Context(), 1); err != nil || ttl != 5 {
				t.Fatalf("renew: %d, %v", ttl, err)
			}
		}
		if took := nd.gone(t, "k"); took < 5*time.Second-time.Millisecond {
			t.Errorf("gone %v after the last renewal", took)
		}
		if ttl, err := nd.data.Renew(t.Context(), 1); err != nil || ttl != 0 {
			t.Errorf("renew after the end: %d, %v", ttl, err)
		}
	})
}

// A positive answer to a renewal that races with the end of its lease means that
// the keys are there.
func TestRenewalAgainstExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 3)
		defer c.close()
		nd, _ := c.leader(0)
		for round := range int64(40) {
			nd.grant(t, 100+round, 2)
			nd.put(t, "k", 100+round)
			time.Sleep(2*time.Second - 5*time.Millisecond)
			for range 200 {
				ttl, err := nd.data.Renew(t.Context(), 100+round)
				if err != nil {
					t.Fatal(err)
				}
				there := nd.count(t, "k", "") == 1
				if ttl > 0 && !there {
					t.Fatalf("round %d: renewed, and the key is gone", round)
				}
				if ttl > 0 || !there {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if _, err := nd.data.Write(t.Context(), nil, KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 100 + round}); err != nil && !errors.Is(err, lease.ErrNotFound) {
				t.Fatal(err)
			}
		}
	})
}

// A new leader gives a lease that was being renewed its full TTL, and one that
// was silent what the old leader had logged: changes of leader don't keep dead
// leases alive.
func TestLeasesOverFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		a.grant(t, 1, 10)
		a.grant(t, 2, 10)
		a.put(t, "living", 1)
		a.put(t, "dead", 2)
		start := time.Now()
		for range 4 {
			time.Sleep(2 * time.Second)
			if _, err := a.data.Renew(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		c.net.isolate(c.addr(a.id))
		b, _ := c.leader(term)
		began := time.Now()
		b.gone(t, "dead")
		if took := time.Since(start); took < 10*time.Second-time.Millisecond || took > 16*time.Second {
			t.Errorf("the silent lease ended after %v", took)
		}
		b.gone(t, "living")
		if took := time.Since(began); took < 10*time.Second-50*time.Millisecond || took > 10*time.Second+latest+50*time.Millisecond {
			t.Errorf("the renewed lease ended %v after the new leader began", took)
		}
		c.net.heal()
		for a.data.Store().Rev() < b.data.Store().Rev() {
			time.Sleep(time.Millisecond)
		}
		if n := a.count(t, "a", "z"); n != 0 {
			t.Errorf("%d keys at the deposed leader", n)
		}
	})
}

// A lease that nobody renews ends although leaders change, however often.
func TestTransfersDoNotKeepADeadLeaseAlive(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Second, 35 * time.Second} {
		t.Run(every.String(), func(t *testing.T) { transfersAndADeadLease(t, every) })
	}
}

func transfersAndADeadLease(t *testing.T, every time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 3)
		defer c.close()
		nd, term := c.leader(0)
		nd.grant(t, 1, 60)
		nd.put(t, "k", 1)
		start := time.Now()
		for time.Since(start) < 5*time.Minute && nd.count(t, "k", "") > 0 {
			time.Sleep(every)
			to := c.other(nd)
			c.handOver(to)
			c.leaderAmong(term, to)
			nd, term = to, to.r.Serving()
		}
		if took := time.Since(start); took < time.Minute || took > 2*time.Minute {
			t.Errorf("a lease of 60 s that nobody renews ended after %v", took)
		}
	})
}

// Leases that end together are a few entries, each at its own revision.
func TestManyLeasesEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		n := int64(5000)
		if testing.Short() {
			n = 1000
		}
		for id := int64(1); id <= n; id++ {
			nd.grant(t, id, 600)
			nd.put(t, fmt.Sprintf("k/%d", id), id)
		}
		before := nd.data.Store().Rev()
		index := nd.r.Applied()
		for nd.count(t, "k/", "k0") > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if revs := nd.data.Store().Rev() - before; revs != n {
			t.Errorf("%d revisions for the ends of %d leases", revs, n)
		}
		if entries := nd.r.Applied() - index; entries > 100 {
			t.Errorf("%d entries for the ends of %d leases", entries, n)
		}
	})
}

// A follower that missed what the log no longer has is given the state: keys,
// history, leases and all.
func TestDataComesWithASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newForgetfulCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		f := c.other(a)
		c.net.isolate(c.addr(f.id))
		a.grant(t, 7, 1000)
		for i := range 200 {
			a.put(t, fmt.Sprintf("k/%03d", i), 7)
		}
		a.put(t, "k/000", 0)
		a.put(t, "last", 0)
		time.Sleep(2 * raft.LeadershipTick) // logs are cut
		c.net.heal()
		for f.data.Store().Rev() < a.data.Store().Rev() {
			time.Sleep(time.Millisecond)
		}
		if f.recovered() == 0 {
			t.Fatal("the follower got no snapshot; the run shows nothing")
		}
		compareReplicas(t, a, f)
		if keys := f.data.leases.Keys(7); len(keys) != 199 {
			t.Errorf("%d keys on the lease, want 199", len(keys))
		}
		c.handOver(f)
		c.leaderAmong(0, f)
		if _, err := f.data.Write(t.Context(), nil, KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 7}); err != nil {
			t.Fatal(err)
		}
		if n := f.count(t, "k/", "k0"); n != 1 {
			t.Errorf("%d keys after the revocation, want 1", n)
		}
	})
}

// What a compaction made superfluous goes also from a replica that heard of the compaction by
// a snapshot alone.
func TestCompactionComesWithASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newForgetfulCluster(t, 3)
		defer c.close()
		a, _ := c.leader(0)
		f := c.other(a)
		c.net.isolate(c.addr(f.id))
		var rev int64
		for range 200 {
			rev = a.put(t, "k", 0)
		}
		// The leader sweeps nothing itself, so that the snapshot comes unswept.
		a.data.sweeper.mu.Lock()
		a.data.sweeper.running = true
		a.data.sweeper.mu.Unlock()
		if _, err := a.data.Write(t.Context(), nil, KindCompact, &pb.CompactionRequest{Revision: rev}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		a.put(t, "last", 0)
		time.Sleep(2 * raft.LeadershipTick) // logs are cut
		c.net.heal()
		for f.data.Store().Rev() < a.data.Store().Rev() {
			time.Sleep(time.Millisecond)
		}
		if f.recovered() == 0 || f.data.Store().Compacted() != rev {
			t.Fatal("the follower got no snapshot with a compaction; the run shows nothing")
		}
		if err := f.data.AwaitSwept(ctx, rev); err != nil {
			t.Errorf("sweep of the follower: %v", err)
		}
	})
}

// A state that a snapshot did not replace is swept as before.
func TestSweepGoesOnAfterReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.put(t, "k", 0)
		nd.r.Between(func() {
			nd.data.BeginReload()
			if err := nd.data.Reload(); err != nil {
				t.Error(err)
			}
		})
		rev := nd.put(t, "k", 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := nd.data.Write(ctx, nil, KindCompact, &pb.CompactionRequest{Revision: rev}); err != nil {
			t.Fatal(err)
		}
		if err := nd.data.AwaitSwept(ctx, rev); err != nil {
			t.Errorf("the sweep stands still: %v", err)
		}
	})
}

// compareReplicas compares what two nodes hold at the newest revision.
func compareReplicas(t *testing.T, a, b *testNode) {
	t.Helper()
	hash := func(nd *testNode) (uint32, int64) {
		v := nd.data.Store().View()
		defer v.Close()
		sum, _, rev, err := v.HashKV(0)
		if err != nil {
			t.Fatal(err)
		}
		return sum, rev
	}
	sumA, revA := hash(a)
	sumB, revB := hash(b)
	if sumA != sumB || revA != revB {
		t.Errorf("replicas differ: %08x at %d and %08x at %d", sumA, revA, sumB, revB)
	}
	if a.data.leases.Granted() != b.data.leases.Granted() {
		t.Errorf("grants differ: %d and %d", a.data.leases.Granted(), b.data.leases.Granted())
	}
}
