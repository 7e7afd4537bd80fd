package raft

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
)

// Deafen keeps dragonboat's reports and ticks from a host's replica until the returned
// function is called: the replica goes on believing what it believed.
func Deafen(h *Host, r *Replica) (hear func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.replicas, r.shardID)
	return func() {
		h.mu.Lock()
		h.replicas[r.shardID] = r
		early, ok := h.early[r.shardID]
		h.mu.Unlock()
		if ok {
			r.leaderUpdated(early)
		}
	}
}

func deafen(nd *testNode) (hear func()) { return Deafen(nd.host, nd.r) }

// handOver makes dragonboat move leadership to a node and waits until the node's
// dragonboat says so.
func (c *cluster) handOver(to *testNode) {
	c.t.Helper()
	for range 10_000 {
		for _, nd := range c.nodes {
			if err := nd.host.transfer(to.id); err != nil {
				continue
			}
		}
		time.Sleep(5 * time.Millisecond)
		if leader, _, valid, err := to.host.nh.GetLeaderID(testShard); err == nil && valid && leader == to.id {
			return
		}
	}
	c.t.Fatal("leadership did not move")
}

func (c *cluster) other(nd *testNode) *testNode {
	for _, o := range c.nodes {
		if o != nd {
			return o
		}
	}
	return nil
}

// A node that was deposed and does not know it has its ReadIndex answered by the
// new leader. Only confirm's last check tells.
func TestCompletedReadIndexDoesNotProveLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		hear := deafen(a)
		b := c.other(a)
		c.handOver(b)
		if _, err := func() (uint64, error) { c.leaderAmong(term, b); return c.add(b, "x") }(); err != nil {
			t.Fatal(err)
		}
		if a.r.Serving() != term {
			t.Fatal("the deposed node knows; the run shows nothing")
		}
		rs, err := a.host.nh.ReadIndex(testShard, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if result := <-rs.AppliedC(); !result.Completed() {
			t.Fatal("the deposed node's ReadIndex did not complete; the run shows nothing")
		}
		if err := a.r.Confirm(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("a deposed node confirmed its leadership: %v", err)
		}
		hear()
	})
}

// leaderAmong waits until one of the nodes serves in a term above the one given.
func (c *cluster) leaderAmong(above uint64, nodes ...*testNode) {
	c.t.Helper()
	for range 100_000 {
		for _, nd := range nodes {
			if nd.r.Serving() > above {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	c.t.Fatal("no leader among the nodes asked")
}

// Between a successor's election and its begin entry the deposed leader's
// entries still count; one that the network delivers twice must apply once.
func TestDuplicatedProposalAppliesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		hear := deafen(a)
		b := c.other(a)
		hearB := deafen(b)
		var doubled atomic.Uint64
		c.net.setRepeat(func(_, _ string, m *raftpb.Message) bool {
			if m.Type == raftpb.Propose {
				doubled.Add(1)
			}
			return m.Type == raftpb.Propose
		})
		c.handOver(b)
		for i := uint64(2); i <= 11; i++ {
			if v, err := c.add(a, "x"); err != nil || v != i {
				t.Fatalf("add %d through the deposed leader: %d, %v", i, v, err)
			}
		}
		hear()
		hearB()
		c.leaderAmong(term, c.nodes...)
		nd, _ := c.leader(term)
		if v, err := c.add(nd, "x"); err != nil || v != 12 {
			t.Fatalf("add at the successor: %d, %v", v, err)
		}
		if doubled.Load() == 0 {
			t.Fatal("no proposal was forwarded; the run shows nothing")
		}
	})
}

// Every confirmed read sees what was acknowledged before it began, whatever
// leadership does meanwhile; every command applies at most once and every
// acknowledged one exactly once.
func TestConfirmedReadsOverTransfers(t *testing.T) {
	const seed = 20240618
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		c.leader(0)
		length := 5 * time.Second
		if testing.Short() {
			length = time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var acked, confirmed, refused atomic.Uint64
		var wg sync.WaitGroup
		for _, nd := range c.nodes {
			wg.Add(2)
			go func() {
				defer wg.Done()
				for ctx.Err() == nil {
					v, err := nd.r.Propose(ctx, kindAdd, []byte("x"))
					if n, ok := v.(uint64); ok && err == nil {
						for old := acked.Load(); old < n && !acked.CompareAndSwap(old, n); old = acked.Load() {
						}
					}
					time.Sleep(time.Millisecond)
				}
			}()
			go func() {
				defer wg.Done()
				for ctx.Err() == nil {
					before := acked.Load()
					if err := nd.r.Confirm(ctx); err != nil {
						refused.Add(1)
						time.Sleep(time.Millisecond)
						continue
					}
					if got := nd.m.get("x"); got < before {
						t.Errorf("confirmed read %d, %d was acknowledged before", got, before)
					}
					confirmed.Add(1)
					time.Sleep(100 * time.Microsecond)
				}
			}()
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		for ctx.Err() == nil {
			to := c.nodes[rnd.IntN(len(c.nodes))]
			for _, nd := range c.nodes {
				if err := nd.host.transfer(to.id); err != nil {
					continue
				}
			}
			time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
		}
		wg.Wait()
		t.Logf("%d acknowledged, %d confirmed reads, %d refused", acked.Load(), confirmed.Load(), refused.Load())
		seen := make(map[CommandID]bool)
		for _, id := range c.nodes[0].m.applied() {
			if seen[id] {
				t.Errorf("command %v applied twice", id)
			}
			seen[id] = true
		}
		if confirmed.Load() == 0 || acked.Load() == 0 {
			t.Error("nothing happened; the run shows nothing")
		}
	})
}
