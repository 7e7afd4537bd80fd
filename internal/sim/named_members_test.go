package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// runMembersNamed runs a test of a cluster whose members change, without faults.
func runMembersNamed(t *testing.T, members int, fn func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, options{seed: 1, splits: fourShards, snapshotEntries: never, tick: 50 * time.Millisecond, members: members})
		defer c.close()
		fn(t, c)
	})
}

// eventually waits until ok.
func (c *cluster) eventually(what string, ok func() bool) {
	c.tb.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.tb.Fatalf("not within a minute: %s%s", what, c.membersSaid())
		}
	}
}

// systemServes reports whether a node leads the system shard, also one that does not serve clients yet.
func (n *node) systemServes() bool {
	n.mu.Lock()
	p := n.opened
	n.mu.Unlock()
	return p != nil && len(p.replicas()) > 0 && p.replicas()[0].Serving() != 0
}

// A node that is being removed and starts again, when data shards have let go of it, hands over the system shard if it comes to lead
// it: it does not wait for those shards first.
func TestLeavingNodeHandsOverWhenItStartsAgain(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		t.Helper()
		one, three := c.nodes[0], c.nodes[2]
		c.placeAll(one)
		p := one.running()
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		if err := p.cluster.RemoveMember(ctx, three.id, p.cluster.State().Cluster.Members); err != nil {
			t.Fatal(err)
		}
		c.eventually("a data shard lets go of the node", func() bool {
			for _, d := range p.shards {
				if _, voters := d.Replica().Voters(); voters[three.replica] == "" {
					return true
				}
			}
			return false
		})
		// Nobody counts as live, so that the system shard keeps its members.
		c.setInterfere(func(k call) interference { return interference{refuse: k.name == "Applied"} })
		if err := three.die(false, c.rnd); err != nil {
			t.Fatal(err)
		}
		c.wg.Go(func() { c.revive(three) })
		c.eventually("the node leads the system shard", func() bool {
			if r := p.cluster.Replica(); r.Serving() != 0 {
				// A refused request is made again.
				_ = r.Transfer(three.replica)
			}
			return three.systemServes()
		})
		c.setInterfere(func(call) interference { return interference{} })
		c.eventually("the node is removed", func() bool { return p.cluster.State().Removed[three.id].ID != 0 })
		if _, voters := c.leader(ctx, placement.SystemShard).cluster.Replica().Voters(); len(voters) != 2 {
			t.Errorf("voters %v", voters)
		}
	})
}

// The system shard lets go of a node last, and the record after it: a node that no shard asks any more would not hear what becomes of it,
// and one that is barred while it votes could lead on.
func TestSystemShardLetsGoLast(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		t.Helper()
		one, three := c.nodes[0], c.nodes[2]
		c.placeAll(one)
		p := one.running()
		last := c.shards()[len(c.shards())-1]
		// Who follows in one data shard does not count as live, so that it keeps its members.
		c.setInterfere(func(k call) interference { return interference{refuse: k.name == "Applied" && k.shard == last} })
		if err := p.cluster.RemoveMember(t.Context(), three.id, p.cluster.State().Cluster.Members); err != nil {
			t.Fatal(err)
		}
		votes := func(id uint64) bool {
			_, voters := p.replica(id).Voters()
			return voters[three.replica] != ""
		}
		c.eventually("the other data shards let go of the node", func() bool { return !votes(placement.FirstDataShard) })
		time.Sleep(5 * time.Second)
		if !votes(last) || !votes(placement.SystemShard) || p.cluster.State().Removed[three.id].ID != 0 || three.running() == nil {
			t.Errorf("the node has gone too soon:%s", c.membersSaid())
		}
		c.setInterfere(func(call) interference { return interference{} })
		c.eventually("the node is removed", func() bool { return p.cluster.State().Removed[three.id].ID != 0 })
		// A client of the node has it ask the others.
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		if q := three.running(); q != nil {
			if _, err := q.router.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err == nil {
				t.Error("a removed node answers")
			}
		}
		c.eventually("the node is sent away", func() bool { return errors.Is(three.refused(), system.ErrRemoved) })
	})
}

// A node whose disks are lost is not let in with others, neither a first one nor one that joined, and who takes its place gets other
// replicas: the lost ones may have acknowledged something. Old copies of the disks of a removed node are sent away.
func TestLostReplicasDoNotReturn(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		t.Helper()
		one, two := c.nodes[0], c.nodes[1]
		used := map[uint64]bool{1: true, 2: true, 3: true}
		p := one.running()
		ids := func() []uint64 { return slices.Collect(maps.Keys(p.cluster.State().System.Replicas)) }
		add := func() *node {
			urls := []string{address("peer", uint64(len(used)+100))}
			if _, err := p.cluster.AddMember(t.Context(), urls, false, p.cluster.State().Cluster.Members); err != nil {
				t.Fatal(err)
			}
			n := c.admit(1, urls, address("disks", uint64(len(used)+100)))
			if used[n.replica] {
				t.Errorf("replica %d is given again; there are %v", n.replica, ids())
			}
			used[n.replica] = true
			if err := n.restart(c.ctx); err != nil {
				t.Fatal(err)
			}
			c.eventually("the member votes", func() bool { return p.settledMembers(t.Context()) })
			return n
		}
		remove := func(n *node) {
			if err := p.cluster.RemoveMember(t.Context(), n.id, p.cluster.State().Cluster.Members); err != nil {
				t.Fatal(err)
			}
			c.eventually("the member is removed", func() bool { return p.cluster.State().Removed[n.id].ID != 0 })
		}
		stray := func(n *node, why error) {
			c.mu.Lock()
			c.strays = append(c.strays, n)
			c.mu.Unlock()
			if err := n.restart(c.ctx); err == nil || !errors.Is(n.refused(), why) {
				t.Errorf("node %d: %v, sent away for %v, want %v", n.id, err, n.refused(), why)
			}
		}
		if err := two.die(false, c.rnd); err != nil {
			t.Fatal(err)
		}
		old, err := two.copied()
		if err != nil {
			t.Fatal(err)
		}
		c.revive(two)
		for _, n := range []*node{c.nodes[2], add()} {
			if err := c.lose(n); err != nil {
				t.Fatal(err)
			}
			wiped := newNode(c, n.id, n.replica)
			wiped.told, wiped.urls, wiped.instance = n.told, n.urls, "others"
			stray(wiped, system.ErrInstance)
			if err := p.cluster.JoinMember(t.Context(), n.urls, "others", system.Version); !errors.Is(err, system.ErrInstance) {
				t.Errorf("another directory joins as %d: %v", n.id, err)
			}
			remove(n)
			add()
		}
		remove(two)
		stray(old, system.ErrRemoved)
	})
}

// All others are replaced while a node is down. It knows none of those that it finds when it starts again, and they know it.
func TestMemberComesBackToOthers(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		t.Helper()
		one, two, three := c.nodes[0], c.nodes[1], c.nodes[2]
		if err := three.die(false, c.rnd); err != nil {
			t.Fatal(err)
		}
		through := one
		for i, old := range []*node{one, two} {
			urls := []string{address("peer", uint64(100+i))}
			p := through.running()
			if _, err := p.cluster.AddMember(t.Context(), urls, false, p.cluster.State().Cluster.Members); err != nil {
				t.Fatal(err)
			}
			n := c.admit(1, urls, address("disks", uint64(100+i)))
			if err := n.restart(c.ctx); err != nil {
				t.Fatal(err)
			}
			c.eventually("the new member votes", func() bool { return n.running().settledMembers(t.Context()) })
			through = n
			c.eventually("a member is removed", func() bool {
				p := through.running()
				_ = p.cluster.RemoveMember(t.Context(), old.id, p.cluster.State().Cluster.Members) // judged anew
				return p.cluster.State().Removed[old.id].ID != 0
			})
		}
		if _, err := through.running().router.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Value: []byte("of others")}); err != nil {
			t.Fatal(err)
		}
		if err := three.restart(c.ctx); err != nil {
			t.Fatal(err)
		}
		got, err := three.running().router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")})
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "of others" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// A node that joined and has nothing of a shard yet serves nobody, also when it is being removed and so waits for no leader.
func TestWhoHoldsNothingServesNobody(t *testing.T) {
	runMembersNamed(t, 3, func(t *testing.T, c *cluster) {
		t.Helper()
		p := c.nodes[0].running()
		urls := []string{address("peer", 100)}
		if _, err := p.cluster.AddMember(t.Context(), urls, false, p.cluster.State().Cluster.Members); err != nil {
			t.Fatal(err)
		}
		n := c.admit(1, urls, address("disks", 100))
		first := slices.Min(slices.Collect(maps.Keys(p.shards)))
		c.drop(first, func(l link, _ *raftpb.Message) bool { return l.to == n.id })
		c.wg.Go(func() { c.revive(n) })
		c.eventually("the node knows the members", func() bool {
			q := c.answering(n.id)
			return q != nil && len(q.cluster.State().Nodes) == 4
		})
		c.net.setDecide(func(_ link, system bool, _ *raftpb.Message) fate { return fate{lose: !system} }) // no shard lets go of it
		if err := p.cluster.RemoveMember(t.Context(), n.id, p.cluster.State().Cluster.Members); err != nil {
			t.Fatal(err)
		}
		c.eventually("the node hears that it is being removed", func() bool {
			q := c.answering(n.id)
			return q != nil && q.cluster.State().Nodes[n.id].Leaving
		})
		time.Sleep(time.Second)
		if n.running() != nil {
			t.Error("it serves clients")
		}
		c.net.setDecide(func(link, bool, *raftpb.Message) fate { return fate{} })
		c.eventually("the node is sent away", func() bool { return errors.Is(n.refused(), system.ErrRemoved) })
	})
}
