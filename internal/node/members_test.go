package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/freeport"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/system"
)

// someSplits are those of clusters whose members change: of one shard and of four, or of four alone in short runs.
func someSplits() []string {
	if testing.Short() {
		return []string{"g,n,t"}
	}
	return []string{"", "g,n,t"}
}

// changes returns how a node changes the members, as its API does.
func (n *Node) changes() clusterService { return clusterService{n.cluster, n, true} }

// service returns the changes of a node that runs.
func (c *cluster) service() clusterService {
	c.t.Helper()
	for _, m := range c.machines {
		if m.node != nil {
			s := m.node.changes()
			s.strict = !c.lax
			return s
		}
	}
	c.t.Fatal("no node runs")
	return clusterService{}
}

// machineFor makes the machine of a member that is added: not started.
func (c *cluster) machineFor(name string) *machine {
	c.t.Helper()
	addrs, err := freeport.Addrs(1)
	check(c.t, err)
	m := &machine{name: name, peers: addrs[0]}
	m.wipe()
	return m
}

// add adds a member, and makes ready its machine.
func (c *cluster) add(name string, learner bool) (m *machine, id uint64) {
	c.t.Helper()
	m = c.machineFor(name)
	// A cluster whose members have just started or gone may call itself unhealthy for a moment.
	until(c.t, "a member to be added", func() bool {
		var err error
		id, err = c.service().AddMember(c.t.Context(), []string{"http://" + m.peers}, learner)
		if err != nil {
			c.t.Log(err)
		}
		return err == nil
	})
	c.admits(m)
	return m, id
}

// grow adds a member, starts its node, and waits until that votes.
func (c *cluster) grow(name string) {
	c.t.Helper()
	m, _ := c.add(name, false)
	c.start(m)
	until(c.t, "the new node to vote", func() bool { return c.service().votes(c.t.Context(), m.idOf()) })
}

// admits gives a machine the flags with which its node joins.
func (c *cluster) admits(m *machine) {
	c.t.Helper()
	all := []string{m.name + "=http://" + m.peers}
	for _, n := range c.service().State().SortedNodes() {
		if n.PeerURLs[0] != "http://"+m.peers {
			all = append(all, fmt.Sprintf("%x=%s", n.ID, n.PeerURLs[0]))
		}
	}
	m.flags = []string{
		"--name", m.name, "--data-dir", "/" + m.name, "--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "existing",
		"--heartbeat-interval", "50", "--election-timeout", "500", "--listen-peer-urls", "http://" + m.peers, "--initial-advertise-peer-urls", "http://" + m.peers,
	}
	if !slices.Contains(c.machines, m) {
		c.machines = append(c.machines, m)
	}
}

// remove removes a member, and stops its node.
func (c *cluster) remove(m *machine, id uint64) {
	c.t.Helper()
	others := slices.DeleteFunc(slices.Clone(c.machines), func(o *machine) bool { return o == m })
	(&cluster{t: c.t, machines: others}).removeBy(id)
	if m.node != nil {
		select {
		case err := <-m.node.Failed():
			if !errors.Is(err, peer.ErrRemoved) {
				c.t.Errorf("the removed node ended with %v", err)
			}
		case <-time.After(time.Minute):
			c.t.Error("the removed node does not end")
		}
	}
	c.stop(m)
	c.machines = others
}

func (c *cluster) removeBy(id uint64) {
	c.t.Helper()
	until(c.t, "a member to be removed", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		defer cancel()
		err := c.service().RemoveMember(ctx, id)
		if err != nil {
			c.t.Log(err)
		}
		return err == nil || errors.Is(err, system.ErrNotMember)
	})
}

// idOf returns the id of a machine's node.
func (m *machine) idOf() uint64 { return m.node.cluster.MemberID() }

// Each node of a cluster is replaced by another, one that runs and one whose directory was lost among them, and
// what the cluster holds stays.
func TestNodesAreReplaced(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, splits := range someSplits() {
		t.Run("splits="+splits, func(t *testing.T) {
			c := newCluster(t, 3, "--initial-splits", splits)
			c.start(c.machines...)
			c.put("a", "0")
			c.put("z", "0")
			id := c.machines[0].node.cluster.ClusterID()
			for i := range 3 {
				old := c.machines[0]
				gone := old.idOf()
				if i == 1 { // its directory is lost
					c.stop(old)
					old.wipe()
				}
				if i != 1 {
					m, _ := c.add(fmt.Sprint("new", i), false)
					c.start(m)
					c.put("a", fmt.Sprint("joined ", i))
					c.remove(old, gone)
				} else {
					c.remove(old, gone)
					m, _ := c.add(fmt.Sprint("new", i), false)
					c.start(m)
				}
				c.put("a", fmt.Sprint(i))
				c.put("z", fmt.Sprint(i))
			}
			state := c.machines[0].node.cluster.State()
			if len(c.machines) != 3 || len(state.Nodes) != 3 || len(state.Removed) != 3 || state.Cluster.ID != id {
				t.Fatalf("%d machines, %d nodes, %d removed", len(c.machines), len(state.Nodes), len(state.Removed))
			}
			resp, err := c.machines[0].node.router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")})
			check(t, err)
			if kv := resp.Kvs[0]; string(kv.Value) != "2" || kv.Version != 6 {
				t.Errorf("a is %q at version %d", kv.Value, kv.Version)
			}
			// The new ones are as good as the old ones were: any two are a majority, and all start again.
			for _, m := range c.machines {
				c.stop(m)
				c.put("a", "without "+m.name)
				c.start(m)
				c.holds("a", "without "+m.name)
			}
			c.stop(c.machines...)
			c.start(c.machines...)
			c.put("z", "last")
		})
	}
}

// A first member that never starts is removed, and another takes its place.
func TestFirstMemberThatNeverStartsIsReplaced(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3, "--initial-splits", "g")
	c.start(c.machines[:2]...)
	c.put("a", "of two")
	never := uint64(0)
	for id, n := range c.service().State().Nodes {
		if n.Instance == "" {
			never = id
		}
	}
	if _, err := c.service().AddMember(t.Context(), []string{"http://127.0.0.1:1"}, false); !errors.Is(err, system.ErrVersion) {
		t.Errorf("a member is added: %v", err)
	}
	c.remove(c.machines[2], never)
	c.grow("new")
	c.stop(c.machines[0])
	c.put("a", "of the new one and another")
}

// All others are replaced while a node is down. It knows none of those that it finds when it starts again, and takes part with them.
func TestMemberComesBackToOthers(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, splits := range someSplits() {
		t.Run("splits="+splits, func(t *testing.T) {
			c := newCluster(t, 3, "--initial-splits", splits)
			c.lax = true // else nodes are added while all are there
			c.start(c.machines...)
			c.put("a", "before")
			down := c.machines[2]
			c.stop(down)
			for i := range 2 {
				c.grow(fmt.Sprint("new", i))
				c.remove(c.machines[0], c.machines[0].idOf())
			}
			c.put("a", "of others")
			c.put("z", "of others")
			c.start(down)
			c.holds("a", "of others")
			c.holds("z", "of others")
			// It votes: with another one down there is still a majority.
			c.stop(c.machines[len(c.machines)-1])
			c.put("a", "with two")
		})
	}
}

// One node grows to three and to five, and shrinks back, while clients write.
func TestClusterGrowsAndShrinks(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, splits := range someSplits() {
		t.Run("splits="+splits, func(t *testing.T) {
			c := newCluster(t, 1, "--initial-splits", splits)
			c.start(c.machines...)
			writing, stop := context.WithCancel(t.Context())
			first := c.machines[0].node
			written := make(chan int)
			go func() {
				n := 0
				for ; writing.Err() == nil; n++ {
					key := string(rune('a' + n%26))
					if _, err := first.router.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte("v")}); err != nil {
						t.Errorf("write %d: %v", n, err)
					}
				}
				written <- n
			}()
			for i := range 4 {
				c.grow(fmt.Sprint("new", i))
			}
			for range 4 {
				m := c.machines[len(c.machines)-1]
				c.remove(m, m.idOf())
			}
			stop()
			if n := <-written; n < 100 {
				t.Errorf("%d writes", n)
			}
			if state := first.cluster.State(); len(state.Nodes) != 1 || len(state.Removed) != 4 {
				t.Errorf("%d nodes, %d removed", len(state.Nodes), len(state.Removed))
			}
			c.put("a", "last")
			c.stop(c.machines...)
			c.start(c.machines...)
			c.holds("a", "last")
		})
	}
}

// A learner follows, is promoted when it has caught up, and votes then.
func TestLearner(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 1, "--initial-splits", "m")
	c.start(c.machines...)
	c.put("a", "1")
	m, id := c.add("learner", true)
	if _, err := c.service().AddMember(t.Context(), []string{"http://x:1"}, true); !errors.Is(err, system.ErrTooManyLearners) {
		t.Errorf("a second learner: %v", err)
	}
	if err := c.service().PromoteMember(t.Context(), id); !errors.Is(err, system.ErrLearnerBehind) {
		t.Errorf("promoted before it started: %v", err)
	}
	c.start(m)
	c.holds("a", "1")
	if !m.node.changes().IsLearner() {
		t.Error("the node does not know that it is a learner")
	}
	silent := func() float64 { return measured(t, m.node)["latchkey_replicas_without_vote"] }
	if n := silent(); c.service().votes(t.Context(), id) || n != 3 { // of the system shard and two others
		t.Errorf("a learner votes, or has %v replicas without a vote", n)
	}
	until(t, "the promotion", func() bool { return c.service().PromoteMember(t.Context(), id) == nil })
	if !c.service().votes(t.Context(), id) || m.node.changes().IsLearner() {
		t.Error("a promoted learner does not vote, or does not know it")
	}
	until(t, "the node to know that it votes", func() bool { return silent() == 0 })
	if err := c.service().PromoteMember(t.Context(), id); !errors.Is(err, system.ErrNotLearner) {
		t.Errorf("promoted again: %v", err)
	}
	c.stop(m)
	c.start(m)
	c.put("z", "2")
}

// Who can't join is told why, and changes that leave too few are refused.
func TestMembersThatDoNotFit(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3)
	c.start(c.machines...)
	c.put("a", "1")
	refused := func(m *machine, text string, flags ...string) {
		t.Helper()
		if err := m.launch(nil, flags...); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want it to say %q", m.name, err, text)
		}
	}
	stranger := c.machineFor("stranger")
	c.admits(stranger)
	c.machines = c.machines[:3]
	refused(stranger, "member count is unequal")
	m, id := c.add("new", false)
	refused(m, "another --initial-cluster-token", "--initial-cluster-token", "other")
	m.wipe()
	c.start(m)
	c.put("a", "2")
	c.stop(m)
	m.wipe()
	refused(m, "another data directory")
	c.remove(m, id)
	refused(m, "member count is unequal")

	// Of three one may go, and then none of those that are left.
	odd := c.machines[2]
	gone := odd.idOf()
	c.stop(odd)
	until(t, "the others to miss it", func() bool {
		_, err := c.service().AddMember(t.Context(), []string{"http://x:1"}, false)
		return errors.Is(err, system.ErrUnhealthy)
	})
	if err := c.service().RemoveMember(t.Context(), c.machines[1].idOf()); !errors.Is(err, system.ErrUnhealthy) {
		t.Errorf("one that runs was removed, with another down: %v", err)
	}
	c.remove(odd, gone)
	c.put("a", "3")
	if err := c.service().RemoveMember(t.Context(), gone); !errors.Is(err, system.ErrNotMember) {
		t.Errorf("removed again: %v", err)
	}
	// The node that was removed while it was down is told when it comes back.
	if err := odd.launch(nil); !errors.Is(err, peer.ErrRemoved) {
		t.Errorf("a removed node came back: %v", err)
	}
}

// A member's peer URLs change while its node is down, and the others find it there; what the node itself was
// started with does not undo that.
func TestMemberMoves(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3)
	c.start(c.machines...)
	c.put("a", "1")
	m := c.machines[2]
	id := m.idOf()
	c.stop(m)
	addrs, err := freeport.Addrs(1)
	check(t, err)
	if err := c.service().UpdateMember(t.Context(), id, []string{"http://" + c.machines[0].peers}); !errors.Is(err, system.ErrPeerURLExists) {
		t.Errorf("moved to another's address: %v", err)
	}
	check(t, c.service().UpdateMember(t.Context(), id, []string{"http://" + addrs[0]}))
	m.flags = append(m.flags, "--listen-peer-urls", "http://"+addrs[0])
	c.start(m)
	c.put("a", "2")
	c.reaches(6)
	if n := c.service().State().Nodes[id]; n.PeerURLs[0] != "http://"+addrs[0] {
		t.Errorf("the member is at %v", n.PeerURLs)
	}
}
