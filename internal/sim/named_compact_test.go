package sim

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/placement"
)

func (p *process) compact(tb testing.TB, rev int64) {
	tb.Helper()
	if _, err := p.router.Compact(tb.Context(), &pb.CompactionRequest{Revision: rev}); err != nil {
		tb.Fatalf("compact %d: %v", rev, err)
	}
}

// From the moment that a compaction is answered no shard shows what it dropped, though
// none has swept yet.
func TestCompactedForAllShardsAtOnce(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		for _, n := range c.nodes {
			c.place(shardA+n.id-1, n)
		}
		c.unswept.Store(true)
		old := c.node(1).put(t, "a/x", "1")
		for _, key := range []string{"a/x", "b/x", "c/x", "d/x"} {
			c.node(2).put(t, key, "2")
		}
		last := c.node(2).put(t, "d/x", "3")
		c.node(1).compact(t, last)
		for _, n := range c.nodes {
			for _, key := range []string{"a/x", "b/x", "c/x", "d/x"} {
				_, err := n.running().router.Range(t.Context(), &pb.RangeRequest{Key: []byte(key), Revision: old})
				if !errors.Is(err, mvcc.ErrCompacted) {
					t.Errorf("%s at node %d: %v", key, n.id, err)
				}
			}
		}
	})
}

// A read has its revision. Before it reads, others write, compact above it, and the
// shard sweeps. It takes a newer revision; the client, who asked for none, must not
// hear of compactions.
func TestReadOvertakenByASweep(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		var promises calls
		c.setInterfere(func(k call) interference {
			if k.name == "Promise" && k.from == 3 && promises.next() <= 2 {
				return interference{after: 100 * time.Millisecond}
			}
			return interference{}
		})
		c.node(1).put(t, "b/x", "0")
		c.node(1).put(t, "c/x", "0")
		read := meanwhile(func() (*pb.RangeResponse, error) {
			return c.node(3).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("d")})
		})
		time.Sleep(10 * time.Millisecond)
		last := int64(0)
		for i := range 10 {
			c.node(1).put(t, "b/x", strconv.Itoa(i))
			last = c.node(1).put(t, "c/x", strconv.Itoa(i))
		}
		c.node(1).compact(t, last)
		time.Sleep(30 * time.Millisecond)
		if got := c.node(3).shards[shardB].Store().Compacted(); got != last {
			c.unshown("swept to %d", got)
		}
		resp, err := read.wait()
		if err != nil || resp.Count != 2 || resp.Header.Revision < last {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// A watch that has heard everything is not ended by a compaction, though its shard has
// been idle since long before it, and comes back by a snapshot.
func TestCaughtUpWatchOfAnIdleShard(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.node(3).put(t, "b/x", "1")
		w := &watcher{c: c, key: []byte("b/"), end: []byte("b0"), wake: make(chan struct{}, 1), pick: func() *process { return c.node(3) }}
		c.wg.Go(func() { w.run(c.ctx.Done()) })
		synctest.Wait()
		c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
			return fate{lose: !system && m.ShardID == shardB && (l.to == 3 || l.from == 3)}
		})
		last := int64(0)
		for range 200 {
			last = c.node(1).put(t, "a/x", "1")
			nothing := &pb.TxnRequest{Success: []*pb.RequestOp{wrapDelete(&pb.DeleteRangeRequest{Key: []byte("b/none")})}}
			if _, err := c.node(1).router.Txn(t.Context(), nothing); err != nil {
				t.Fatal(err)
			}
		}
		c.node(1).compact(t, last)
		time.Sleep(2 * raft.LeadershipTick) // logs are cut
		c.net.setDecide(nil)
		c.net.mu.Lock()
		c.net.snapshots = 0
		c.net.mu.Unlock()
		for range 10_000 {
			if c.node(3).shards[shardB].Store().Compacted() == last {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if c.net.begun() == 0 {
			c.unshown("there was no snapshot")
		}
		next := c.node(1).put(t, "b/x", "2")
		events := w.heard(t, 1)
		if events[0].Kv.ModRevision != next {
			t.Errorf("heard %v, expected %d", events, next)
		}
	})
}

// A node that knows of a compaction in one shard, and of nothing above it in another,
// has no revision of its own to answer a serializable read from.
func TestSerializableReadBehindASweep(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
			return fate{lose: !system && m.ShardID == shardB && (l.to == 3 || l.from == 3)}
		})
		c.node(1).put(t, "b/x", "1")
		c.node(1).put(t, "a/x", "1")
		last := c.node(1).put(t, "a/x", "2")
		c.node(1).compact(t, last)
		time.Sleep(50 * time.Millisecond)
		if at := c.node(3).shards[shardA].Store().Compacted(); at != last {
			c.unshown("swept to %d", at)
		}
		time.AfterFunc(100*time.Millisecond, func() { c.net.setDecide(nil) })
		resp, err := c.node(3).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c"), Serializable: true})
		if err != nil || resp.Count != 2 {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// What a number of revisions to keep counts is revisions that changed something: neither
// those of commands that changed nothing nor those that a new oracle leaves out.
func TestRetainedRevisionsChangedSomething(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		w := c.watchAll(c.node(1))
		p := c.node(1)
		missing := &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("b/none"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{}}},
			Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x")})},
		}
		for i := range 10 {
			p.put(t, string("abcd"[i%4])+"/1", "1")
			for range 30 {
				if _, err := p.router.Txn(t.Context(), missing); err != nil {
					t.Fatal(err)
				}
			}
			if i%4 == 3 {
				c.place(placement.SystemShard, c.nodes[i/4+1])
			}
		}
		events := w.heard(t, 10)
		for n := range int64(12) {
			want := int64(0)
			if n < 10 {
				want = events[9-n].Kv.ModRevision
			}
			if got, err := p.router.Retaining(t.Context(), n); err != nil || got != want {
				t.Errorf("to keep %d revisions compact at %d, %v, want %d", n, got, err, want)
			}
		}
	})
}

// A new oracle leaves out about as many numbers as were handed out of late, so few where
// little is written.
func TestNewOraclesLeaveOutFewNumbers(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		last := c.node(1).put(t, "a/1", "1")
		for i := range 6 {
			c.place(placement.SystemShard, c.nodes[(i+1)%nodes])
			rev := c.node(1).put(t, "a/1", "1")
			if rev-last > 1000 {
				t.Errorf("a new oracle went from %d to %d", last, rev)
			}
			last = rev
		}
	})
}
