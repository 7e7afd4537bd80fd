package sim

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/placement"
)

// Where every message takes so long that the way there and back is an election timeout, all
// calls are answered, if slowly: no attempt is given up before it can be answered.
func TestLatencyOfAnElectionTimeout(t *testing.T) {
	const tick = 100 * time.Millisecond // as a node's by default
	o := options{seed: seed(t), splits: fourShards, snapshotEntries: 60, tick: tick}
	bubbleOf(t, o, func(c *cluster) {
		t := c.tb
		// Leaders, the oracle and homes are on different nodes.
		c.place(shardB, c.nodes[1])
		c.place(shardC, c.nodes[2])
		c.place(placement.SystemShard, c.nodes[1])
		c.net.setFar(electionTicks * tick / 2)
		time.Sleep(time.Second)
		w := c.watchAll(c.node(3))
		written := 0
		for _, n := range c.nodes {
			p := n.running()
			for _, prefix := range []string{"a", "b", "c", "d"} {
				p.put(t, prefix+"/1", "v")
				written++
			}
			p.read(t, "a", "e")
			p.read(t, "b/1", "")
		}
		w.inOrder(t, written)
		c.leaseFromAfar()
	})
}

// leaseFromAfar has a lease whose home is led by node 1 live and end, with keys on all
// shards.
func (c *cluster) leaseFromAfar() {
	t := c.tb
	id := c.leaseAt(shardA)
	p := c.node(3)
	p.grant(t, id, 60)
	for _, key := range []string{"a/l", "b/l", "c/l", "d/l"} {
		if err := p.attach(t, key, id); err != nil {
			t.Fatalf("attach %s: %v", key, err)
		}
	}
	if kept, err := p.router.LeaseRenew(t.Context(), id); err != nil || kept.TTL != 60 {
		t.Fatalf("renewed: %v, %v", kept, err)
	}
	life, err := p.router.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	if err != nil || len(life.Keys) != 4 {
		t.Fatalf("time to live: %v, %v", life, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.router.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id}); err != nil {
		t.Fatalf("revoke: %v", err)
	}
	if left, _ := p.read(t, "a/l", "a/m"); len(left) != 0 {
		t.Fatalf("left of the lease: %v", left)
	}
}
