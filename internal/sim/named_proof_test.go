package sim

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// leaderCalls makes each call that the router makes of a shard's leader, by name.
var leaderCalls = map[string]func(context.Context, router.Leader) error{
	"Write": func(ctx context.Context, l router.Leader) error {
		_, err := l.Write(ctx, nil, shard.KindLeaseGrant, &pb.LeaseGrantRequest{ID: idOfProof, TTL: 60})
		return err
	},
	"Confirm": func(ctx context.Context, l router.Leader) error {
		_, err := l.Confirm(ctx)
		return err
	},
	"Promise": func(ctx context.Context, l router.Leader) error {
		_, err := l.Promise(ctx, 1, []keys.Span{keys.Point([]byte("a"))})
		return err
	},
	"Raise": func(ctx context.Context, l router.Leader) error {
		_, err := l.Raise(ctx, shard.Fence{Epoch: 1})
		return err
	},
	"SweepTo": func(ctx context.Context, l router.Leader) error { return l.SweepTo(ctx, 1) },
	"Renew":   func(ctx context.Context, l router.Leader) error { _, err := l.Renew(ctx, idOfProof); return err },
	// What proves a renewal ahead is what was proposed after it and has applied.
	"RenewAhead": func(ctx context.Context, l router.Leader) error {
		if _, err := l.RenewAhead(ctx, heldOfProof); err != nil {
			return err
		}
		_, err := l.Write(ctx, nil, shard.KindPut, &pb.PutRequest{Key: []byte("a/ahead")})
		return err
	},
	"TimeToLive": func(ctx context.Context, l router.Leader) error {
		_, _, err := l.TimeToLive(ctx, idOfProof, true)
		return err
	},
	"AwaitEnded": func(ctx context.Context, l router.Leader) error { return l.AwaitEnded(ctx, idOfProof) },
	"Register": func(ctx context.Context, l router.Leader) error {
		_, err := l.Register(ctx, heldOfProof, shardB)
		return err
	},
	"Drop": func(ctx context.Context, l router.Leader) error {
		return l.Drop(ctx, []lease.Ref{{ID: 7, Incarnation: 7}})
	},
	"Take": func(ctx context.Context, l router.Leader) error {
		id := commit.ID{Node: 3, Boot: 1, Counter: forwarded.Add(1)}
		_, err := l.Take(ctx, nil, &shard.Step{Prepare: &commit.Prepare{
			ID: id, Home: shardA, Writes: keys.NewSet(keys.Point(fmt.Append([]byte("a/taken"), id.Counter))),
		}})
		return err
	},
	"Finish": func(ctx context.Context, l router.Leader) error {
		return l.Finish(ctx, []commit.Finish{{ID: commit.ID{Node: 3, Counter: 1}, Rev: 1}})
	},
	"Abort": func(ctx context.Context, l router.Leader) error {
		_, err := l.Abort(ctx, commit.ID{Node: 3, Counter: 2})
		return err
	},
	"Settled": func(ctx context.Context, l router.Leader) error {
		_, err := l.Settled(ctx, commit.ID{Node: 3, Counter: 3})
		return err
	},
}

// writeCalls makes the other calls by which a leader is asked to write.
var writeCalls = map[string]func(context.Context, *shard.Data) error{
	"WriteForwarded": func(ctx context.Context, d *shard.Data) error {
		request, err := proto.Marshal(&pb.PutRequest{Key: []byte("a/forwarded")})
		if err != nil {
			return err
		}
		return d.WriteForwarded(ctx, shard.Sent{ID: raft.CommandID{Origin: 1, Sequence: forwarded.Add(1)}, Kind: shard.KindPut, Request: request})
	},
	"guarded Write": func(ctx context.Context, d *shard.Data) error {
		_, err := d.Write(ctx, &shard.Guard{}, shard.KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: idOfProof})
		return err
	},
}

// forwarded counts the commands that were forwarded.
var forwarded atomic.Uint64

// The leases of the calls: one that they grant and revoke, and one that is there.
var idOfProof, heldOfProof int64

// oracleCalls makes each call that is made of the leader of the system shard.
var oracleCalls = map[string]func(context.Context, system.Leader) error{
	"Propose": func(ctx context.Context, l system.Leader) error {
		// Raises the limit of numbers to what it is above already.
		const limit = 6
		_, _, err := l.Propose(ctx, limit, []byte(`{"limit":1}`))
		return err
	},
	"Confirm": func(ctx context.Context, l system.Leader) error { _, err := l.Confirm(ctx); return err },
	"Ask": func(ctx context.Context, l system.Leader) error {
		_, err := l.Ask(ctx, 1, raft.Leading{}, raft.Voted{})
		return err
	},
	"Prove": func(ctx context.Context, l system.Leader) error { _, _, err := l.Prove(ctx, nil); return err },
}

// everyCall checks that there is a row for each method of an interface.
func everyCall[Leader any](t *testing.T, rows map[string]func(context.Context, Leader) error) []string {
	t.Helper()
	var methods []string
	for m := range reflect.TypeFor[Leader]().Methods() {
		methods = append(methods, m.Name)
	}
	names := slices.Sorted(maps.Keys(rows))
	if !slices.Equal(methods, names) {
		t.Fatalf("the interface has the methods %v, the test calls %v: each call must be proved", methods, names)
	}
	return names
}

// No call that a leader answers is answered by one that can't prove that it leads: one that
// has just been cut off and does not know.
func TestNoCallOfALeaderIsAnsweredUnproved(t *testing.T) {
	ofShards, ofSystem := everyCall(t, leaderCalls), everyCall(t, oracleCalls)
	bubble(t, func(c *cluster) {
		t := c.tb
		ids := c.leasesAt(shardA, 2)
		idOfProof, heldOfProof = ids[0], ids[1]
		p := c.node(1)
		p.grant(t, heldOfProof, 600)
		calls := make(map[string]func(context.Context) error)
		for _, name := range ofShards {
			calls[name] = func(ctx context.Context) error { return leaderCalls[name](ctx, p.shards[shardA]) }
		}
		for name, call := range writeCalls {
			calls[name] = func(ctx context.Context) error { return call(ctx, p.shards[shardA]) }
		}
		for _, name := range ofSystem {
			calls["oracle's "+name] = func(ctx context.Context) error { return oracleCalls[name](ctx, p.cluster.Here()) }
		}
		all := func(within time.Duration) map[string]error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			answers := make(map[string]*later[struct{}])
			for name, call := range calls {
				answers[name] = meanwhile(func() (struct{}, error) { return struct{}{}, call(ctx) })
			}
			errs := make(map[string]error)
			for name, a := range answers {
				_, errs[name] = a.wait()
			}
			return errs
		}
		for _, name := range slices.Sorted(maps.Keys(calls)) { // one after the other: some need what others do
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := calls[name](ctx); err != nil && name != "guarded Write" {
				t.Errorf("%s, asked of a leader: %v", name, err)
			}
			cancel()
		}
		c.net.sever(around(1)...)
		for name, err := range all(electionTicks * tick / 2) {
			if err == nil {
				t.Errorf("%s was answered by a leader that is cut off", name)
			}
		}
		if p.shards[shardA].Replica().Serving() == 0 || p.cluster.Replica().Serving() == 0 {
			c.unshown("the leader knows that it is cut off")
		}
	})
}

// The leader of a lease's home is slow to apply. A revocation that came through another
// node, whose replica is ahead, is not answered while a key of the lease is there.
func TestRevocationIsAheadOfTheLeader(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		c.place(shardB, c.nodes[2])
		c.node(2).grant(t, id, 60)
		if err := c.node(2).attach(t, "b/1", id); err != nil {
			t.Fatal(err)
		}
		c.slowApply(1, shardA, 100*time.Millisecond)
		began := time.Now()
		c.node(2).revoke(t, id)
		if found, _ := c.node(3).read(t, "b/1", ""); len(found) > 0 {
			t.Errorf("revoked after %v, and its key is there: %v", time.Since(began), found)
		}
	})
}

// A renewal is read in one term and proved in a later one of the same node, whose clock has
// what was logged before. What was answered holds all the same.
func TestRenewalOfAnEarlierTerm(t *testing.T) {
	for _, silent := range []time.Duration{time.Second, 7 * time.Second} {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			bubble(t, func(c *cluster) { renewalOfAnEarlierTerm(c.tb, c, silent) })
		})
	}
}

func renewalOfAnEarlierTerm(tb testing.TB, c *cluster, silent time.Duration) {
	tb.Helper()
	const ttl = 10
	id := c.leaseAt(shardA)
	p := c.node(1)
	p.grant(tb, id, ttl)
	time.Sleep(silent)
	reached, resume := c.stallOnce(1, shardA, "renewed")
	renewed := meanwhile(func() (*pb.LeaseKeepAliveResponse, error) { return p.router.LeaseRenew(tb.Context(), id) })
	<-reached
	term := p.shards[shardA].Replica().Serving()
	c.place(shardA, c.nodes[1])
	c.place(shardA, c.nodes[0])
	if p.shards[shardA].Replica().Serving() == term {
		c.unshown("the term is the same")
	}
	resume()
	resp, err := renewed.wait()
	if err != nil || resp.TTL != ttl {
		tb.Fatalf("renewal: %v, %v", resp, err)
	}
	time.Sleep((ttl - 1) * time.Second)
	if _, err := p.router.LeaseTimeToLive(tb.Context(), &pb.LeaseTimeToLiveRequest{ID: id}); err != nil {
		tb.Errorf("a second before what a renewal promised is over: %v", err)
	}
}
