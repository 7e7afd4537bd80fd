package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

// Node 1 asks for the number of a put, and the answer is under way for long. Meanwhile
// node 2 reads at a newer revision: the put must be in what it sees, or come later.
func TestOracleAnswerDelayedBehindARead(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		c.setInterfere(func(k call) interference {
			if k.name == "Ask" && k.count > 0 && k.from == 1 {
				return interference{after: 40 * time.Millisecond}
			}
			return interference{}
		})
		put := c.node(1).putting(t.Context(), "b/x", "1")
		time.Sleep(5 * time.Millisecond)
		found, at := c.node(2).read(t, "b/x", "")
		resp, err := put.wait()
		if err != nil {
			t.Fatal(err)
		}
		if rev := resp.Header.Revision; rev <= at && found["b/x"] == nil {
			t.Errorf("put at %d, and a read at %d does not have it", rev, at)
		}
	})
}

// Two requests for numbers are under way. The second is answered, and waits for its
// turn; the first is lost, and asked again. A read overtakes both. When the first is
// given up, the number of the second must not be used any more: it is older than what
// the read promised.
func TestNumberThatWaitedBehindARead(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		var asks calls
		c.setInterfere(func(k call) interference {
			if k.name != "Ask" || k.count == 0 || k.from != 1 {
				return interference{}
			}
			if n := asks.next(); n == 1 || n == 3 {
				return interference{before: time.Minute}
			}
			return interference{}
		})
		// Longer than one question is waited for, and shorter than two.
		impatient, cancel := context.WithTimeout(t.Context(), 6*electionTicks*tick)
		defer cancel()
		lost := c.node(1).putting(impatient, "b/lost", "1")
		time.Sleep(2 * time.Millisecond)
		put := c.node(1).putting(t.Context(), "b/x", "2")
		time.Sleep(5 * time.Millisecond)
		found, at := c.node(3).read(t, "b/x", "")
		if _, err := lost.wait(); err == nil {
			c.unshown("the lost question was answered")
		}
		resp, err := put.wait()
		if err != nil {
			t.Fatal(err)
		}
		if asks.n < 3 {
			c.unshown("%d questions", asks.n)
		}
		if rev := resp.Header.Revision; rev <= at && found["b/x"] == nil {
			t.Errorf("put at %d, and a read at %d does not have it", rev, at)
		}
	})
}

// A leader asks for a number, is deposed, and leads again before the answer comes.
// Meanwhile its successor has promised more than the number.
func TestNumberAskedForBeforeBegin(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		var asks calls
		c.setInterfere(func(k call) interference {
			if k.name == "Ask" && k.count > 0 && k.from == 1 && asks.next() == 1 {
				return interference{after: 65 * time.Millisecond}
			}
			return interference{}
		})
		term := c.node(1).shards[shardB].Replica().Serving()
		put := c.node(1).putting(t.Context(), "b/x", "1")
		time.Sleep(2 * time.Millisecond)
		begun := time.Now()
		c.place(shardB, c.nodes[1])
		found, at := c.node(3).read(t, "b/x", "")
		c.place(shardB, c.nodes[0])
		if again := c.node(1).shards[shardB].Replica().Serving(); again == term || time.Since(begun) > 60*time.Millisecond {
			c.unshown("term %d again after %v", again, time.Since(begun))
		}
		resp, err := put.wait()
		if err != nil {
			t.Fatal(err)
		}
		if rev := resp.Header.Revision; rev <= at && found["b/x"] == nil {
			t.Errorf("put at %d, and a read at %d does not have it", rev, at)
		}
	})
}

// The commands that a request for numbers serves are those that were there when it was
// sent: one that came later must not have a number from before a write that it came
// after.
func TestNumbersServeThoseWhoAsked(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		c.place(shardC, c.nodes[2])
		c.setInterfere(func(k call) interference {
			if k.name == "Ask" && k.count > 0 && k.from == 1 {
				return interference{after: 40 * time.Millisecond}
			}
			return interference{}
		})
		first := c.node(1).putting(t.Context(), "b/1", "1")
		time.Sleep(5 * time.Millisecond)
		between := c.node(3).put(t, "c/x", "2")
		second := c.node(1).putting(t.Context(), "b/2", "3")
		a, err := first.wait()
		if err != nil {
			t.Fatal(err)
		}
		b, err := second.wait()
		if err != nil {
			t.Fatal(err)
		}
		if a.Header.Revision >= between || b.Header.Revision <= between {
			t.Errorf("puts at %d and %d around one at %d", a.Header.Revision, b.Header.Revision, between)
		}
	})
}

// A command that changes nothing has a number, which its header tells and which the shard
// has reached.
func TestNumberOfWhatChangesNothing(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		nothing := &pb.TxnRequest{Success: []*pb.RequestOp{wrapDelete(&pb.DeleteRangeRequest{Key: []byte("b/none")})}}
		last := c.node(2).put(t, "a/x", "1")
		for range 2 {
			resp, err := c.node(3).router.Txn(t.Context(), nothing)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Header.Revision <= last {
				t.Errorf("header %d after %d does not rise", resp.Header.Revision, last)
			}
			last = resp.Header.Revision
		}
		for _, n := range c.nodes {
			d := n.running().shards[shardB]
			if err := c.agree(t.Context(), shardB); err != nil {
				t.Fatal(err)
			}
			if d.Store().Rev() < last {
				t.Errorf("node %d's shard is at %d behind a command with number %d", n.id, d.Store().Rev(), last)
			}
		}
		if after := c.node(2).put(t, "a/x", "2"); after <= last {
			t.Errorf("a put at %d after %d", after, last)
		}
	})
}

// A node whose replica of one shard is 100 ms behind hears an event of another shard
// at once. The older event of the first must come first.
func TestFollowerBehindUnderMergedWatch(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		w := c.watchAll(c.node(3))
		c.net.setDecide(func(l link, system bool, m *raftpb.Message) fate {
			if !system && m.ShardID == shardB && l.to == 3 {
				return fate{delay: 100 * time.Millisecond}
			}
			return fate{}
		})
		older := c.node(1).put(t, "b/x", "1")
		newer := c.node(1).put(t, "a/x", "2")
		began := time.Now()
		events := w.heard(t, 2)
		w.inOrder(t, 2)
		if events[0].Kv.ModRevision != older || events[1].Kv.ModRevision != newer {
			t.Errorf("heard %v, expected %d and %d", events, older, newer)
		}
		if time.Since(began) < 50*time.Millisecond {
			c.unshown("nothing was late")
		}
	})
}

// A promise for one key does not tell a watch of all keys that nothing is missing.
func TestPromiseOfAPart(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		w := c.watchAll(c.node(3))
		release := c.drop(shardB, entries)
		older := c.node(1).putting(t.Context(), "b/x", "1")
		time.Sleep(5 * time.Millisecond)
		newer := c.node(1).put(t, "a/x", "2")
		if _, at := c.node(3).read(t, "b/other", ""); at < newer {
			c.unshown("read at %d, below %d", at, newer)
		}
		time.Sleep(20 * time.Millisecond)
		release()
		if _, err := older.wait(); err != nil {
			t.Fatal(err)
		}
		w.inOrder(t, 2)
	})
}

// Reads at a shard's leader share the number and the proof, and each waits only for what
// is being written of its own keys.
func TestReadWaitsForItsOwnKeys(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(placement.SystemShard, c.nodes[1])
		var asks calls
		c.setInterfere(func(k call) interference {
			if k.name == "Ask" && k.count == 0 {
				asks.next()
			}
			return interference{}
		})
		release := c.drop(shardB, entries)
		put := c.node(1).putting(t.Context(), "b/x", "1")
		time.Sleep(5 * time.Millisecond)
		reads := make([]*later[*pb.RangeResponse], 100)
		for i := range reads {
			key := []byte{'b', '/', byte('x' + i%2)}
			reads[i] = meanwhile(func() (*pb.RangeResponse, error) {
				return c.node(1).router.Range(t.Context(), &pb.RangeRequest{Key: key})
			})
		}
		for i := 1; i < len(reads); i += 2 {
			if _, err := reads[i].wait(); err != nil {
				t.Fatal(err)
			}
		}
		if n := asks.made(); n > 4 {
			t.Errorf("%d questions for %d reads", n, len(reads))
		}
		for i := 0; i < len(reads); i += 2 {
			select {
			case <-reads[i].done:
				t.Fatal("a read of the key did not wait for the put")
			default:
			}
		}
		release()
		resp, err := put.wait()
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(reads); i += 2 {
			got, err := reads[i].wait()
			if err != nil || len(got.Kvs) != 1 || got.Header.Revision < resp.Header.Revision {
				t.Errorf("%v, %v behind a put at %d", got, err, resp.Header.Revision)
			}
		}
	})
}

// An old leader of the system shard that nobody has told of its successor hands out no
// numbers.
func TestTwoOracles(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		overlaps := 0
		for range 20 {
			c.placeAll(c.nodes[0])
			c.place(shardC, c.nodes[2])
			c.node(1).put(t, "a/x", "0") // it has numbers left
			c.net.setDecide(func(l link, system bool, _ *raftpb.Message) fate {
				return fate{lose: system && (l.from == 1 || l.to == 1)}
			})
			deadline := time.Now().Add(time.Second)
			for time.Now().Before(deadline) && c.node(2).cluster.Replica().Serving() == 0 && c.node(3).cluster.Replica().Serving() == 0 {
				time.Sleep(time.Millisecond)
			}
			newer := c.node(3).put(t, "c/x", "1")
			two := c.node(1).cluster.Replica().Serving() != 0
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			resp, err := c.node(1).router.Put(ctx, &pb.PutRequest{Key: []byte("a/x"), Value: []byte("2")})
			cancel()
			if err == nil && resp.Header.Revision <= newer {
				t.Errorf("put at %d after one at %d", resp.Header.Revision, newer)
			}
			if two {
				overlaps++
			}
			c.net.setDecide(nil)
		}
		if overlaps == 0 {
			c.unshown("there never were two")
		}
	})
}

// A leader is cut off with a put under way, which its successor commits, and with a
// read that waits for it. It comes back by a snapshot: the put's outcome is unknown,
// it must not be made again, and the read must not be answered from before.
func TestDeposedLeaderHealedBySnapshot(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		release := c.drop(shardB, func(l link, m *raftpb.Message) bool { return l.to == 1 && acknowledgements(l, m) })
		put := c.node(1).putting(t.Context(), "b/x", "1")
		time.Sleep(5 * time.Millisecond)
		type answer struct {
			found bool
			at    int64
		}
		read := meanwhile(func() (answer, error) {
			resp, err := c.node(1).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("b/x")})
			return answer{len(resp.GetKvs()) > 0, resp.GetHeader().GetRevision()}, err
		})
		time.Sleep(5 * time.Millisecond)
		c.net.sever(around(1)...)
		release()
		var p *process
		for p == nil || p == c.node(1) {
			time.Sleep(time.Millisecond)
			p = c.leads(shardB)
		}
		for range 200 {
			p.put(t, "b/y", "y")
		}
		time.Sleep(2 * raft.LeadershipTick) // logs are cut
		c.net.heal()
		_, err := put.wait()
		if !errors.Is(err, raft.ErrTimeout) {
			t.Errorf("put: %v, want the unknown outcome", err)
		}
		if c.net.begun() == 0 {
			c.unshown("there was no snapshot")
		}
		got, err := read.wait()
		if err != nil {
			t.Fatal(err)
		}
		found, _ := c.node(2).read(t, "b/x", "")
		if found["b/x"] == nil || found["b/x"].Version != 1 {
			t.Fatalf("b/x is %v, expected once", found["b/x"])
		}
		if rev := found["b/x"].ModRevision; got.found != (rev <= got.at) {
			t.Errorf("the read at %d has the put at %d: %v", got.at, rev, got.found)
		}
	})
}

// A batch in doubt needs a successor, which dragonboat drops while it transfers the
// leadership. The leader must not be busy with that alone: here time would stand still.
func TestTransferWithABatchInDoubt(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		release := c.drop(shardB, entries)
		put := c.node(1).putting(t.Context(), "b/x", "1")
		// dragonboat gives a batch up after two elections' time; its successor too.
		time.Sleep(4*tick*electionTicks - 2*tick)
		if err := c.node(1).shards[shardB].Replica().Transfer(2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tick * electionTicks)
		release()
		if _, err := put.wait(); err != nil {
			t.Fatal(err)
		}
		if found, _ := c.node(2).read(t, "b/x", ""); found["b/x"].GetVersion() != 1 {
			t.Errorf("b/x is %v", found["b/x"])
		}
	})
}

// The indexes of a replica's log tell of its lag: one that is slow to apply has applied less
// than it knows to be committed, and one that is cut off knows less than the others.
func TestIndexesTellOfLag(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		of := func(id uint64) *raft.Replica { return c.node(id).shards[shardA].Replica() }
		agree := func() {
			t.Helper()
			if err := c.agree(t.Context(), shardA); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for id := uint64(1); id <= nodes; id++ {
				if r := of(id); r.Committed() != r.Applied() || r.Applied() != of(1).Applied() {
					t.Errorf("node %d has applied %d of %d, node 1 %d", id, r.Applied(), r.Committed(), of(1).Applied())
				}
			}
		}
		agree()
		before := of(1).Applied()
		for range 5 {
			c.node(1).put(t, "a/1", "1")
		}
		time.Sleep(100 * time.Millisecond)
		agree()
		if after := of(1).Applied(); after < before+5 {
			t.Errorf("five writes took the index from %d to %d", before, after)
		}
		c.slowApply(3, shardA, time.Second)
		c.node(1).put(t, "a/1", "2")
		c.node(1).put(t, "a/1", "3")
		time.Sleep(100 * time.Millisecond)
		if slow := of(3); slow.Committed() != of(1).Committed() || slow.Applied() >= slow.Committed() {
			t.Errorf("the slow node has applied %d of %d, node 1 %d", slow.Applied(), slow.Committed(), of(1).Committed())
		}
		time.Sleep(3 * time.Second)
		agree()
		c.setStall(func(uint64, uint64, string) time.Duration { return 0 })
		c.net.sever(around(3)...)
		c.node(1).put(t, "a/1", "4")
		time.Sleep(100 * time.Millisecond)
		if of(3).Committed() >= of(1).Committed() {
			t.Errorf("the node that is cut off is at %d, node 1 at %d", of(3).Committed(), of(1).Committed())
		}
	})
}

// Requests that may write and don't take no number, where that is known before: neither
// failed transactions nor deletions of nothing; leases that expire take one each.
func TestNumbersOfWhatChangesNothing(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		p := c.node(2)
		p.put(t, "b/there", "1")
		for id := int64(1); id <= 5; id++ {
			p.grant(t, id, 2)
		}
		newest := func() int64 {
			t.Helper()
			b, err := c.leader(t.Context(), placement.SystemShard).cluster.Newest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return b.Newest
		}
		before := newest()
		for range 20 {
			resp, err := p.router.Txn(t.Context(), &pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte("b/there"), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}},
				Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/there"), Lease: 1})},
				Failure: []*pb.RequestOp{wrapRange(&pb.RangeRequest{Key: []byte("b/there")})},
			})
			if err != nil || resp.Succeeded || len(resp.Responses) != 1 || resp.Header.Revision < before {
				t.Fatalf("%v, %v", resp, err)
			}
			deleted, err := p.router.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("c/none"), RangeEnd: []byte("c/nonf")})
			if err != nil || deleted.Deleted != 0 || deleted.Header.Revision < before {
				t.Fatalf("%v, %v", deleted, err)
			}
		}
		if got := newest() - before; got != 0 {
			t.Errorf("%d numbers were used", got)
		}
		time.Sleep(5 * time.Second)
		if got := newest() - before; got < 5 || got > 10 {
			t.Errorf("the ends of 5 leases took %d numbers", got)
		}
	})
}

// A transaction that fails by what its node knows, and would not fail any more, is carried out.
func TestTransactionThatFailedBefore(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.node(1).put(t, "b/there", "1")
		if err := c.agree(t.Context(), shardB); err != nil {
			t.Fatal(err)
		}
		c.slowApply(3, shardB, 200*time.Millisecond)
		if _, err := c.node(1).router.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("b/there")}); err != nil {
			t.Fatal(err)
		}
		resp, err := c.node(3).router.Txn(t.Context(), &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("b/there"), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}},
			Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/there"), Value: []byte("2")})},
		})
		if err != nil || !resp.Succeeded {
			t.Errorf("%v, %v", resp, err)
		}
	})
}
