package node

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// With several shards too, revisions go on where they were after a node was stopped, alone or
// as the leader of the system shard, and after MoveLeader.
func TestPlannedChangesLeaveNoRevisionOut(t *testing.T) {
	// A request for numbers that comes too late for its leader takes some for nothing.
	const few = 10
	for _, nodes := range []int{1, 3} {
		c := newCluster(t, nodes, "--initial-splits", "b,c,d")
		c.start(c.machines...)
		var last int64
		var term uint64
		judged := 0
		put := func(after string) {
			t.Helper()
			c.put("c/1", after)
			resp, err := c.leader("c/1").router.Range(t.Context(), &pb.RangeRequest{Key: []byte("c/1")})
			check(t, err)
			rev, now := resp.Kvs[0].ModRevision, c.systemTerm()
			switch {
			case last == 0:
			case rev <= last:
				t.Errorf("%d nodes, after %s: revision %d follows %d", nodes, after, rev, last)
			case now > term+1:
				// On a busy machine leaders are lost that nobody has asked to go.
				t.Logf("%d nodes, after %s: an election that was not planned", nodes, after)
			case rev > last+few:
				t.Errorf("%d nodes, after %s: revision %d follows %d", nodes, after, rev, last)
			default:
				judged++
			}
			last, term = rev, now
		}
		put("the start")
		oracle := func() (led *machine) {
			until(t, "a leader of the system shard", func() bool {
				for _, m := range c.machines {
					if m.node != nil && m.node.cluster.Replica().Serving() != 0 {
						led = m
					}
				}
				return led != nil
			})
			return led
		}
		if nodes > 1 {
			from := oracle()
			for _, m := range c.machines {
				if m != from {
					check(t, from.node.others.move(t.Context(), m.node.cluster.MemberID()))
					break
				}
			}
			put("MoveLeader")
		}
		for range 2 {
			m := oracle()
			c.stop(m)
			if nodes > 1 {
				put("a stop")
			}
			c.start(m)
			put("a start")
		}
		if judged == 0 {
			t.Errorf("%d nodes: every change was one that was not planned", nodes)
		}
		c.stop(c.machines...)
	}
}

// systemTerm returns the newest term of the system shard that a node knows.
func (c *cluster) systemTerm() (term uint64) {
	for _, m := range c.machines {
		if m.node != nil {
			term = max(term, m.node.cluster.Replica().Leader().Term)
		}
	}
	return term
}
