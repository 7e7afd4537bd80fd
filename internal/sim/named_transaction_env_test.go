package sim

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// The runs of transactions have one over the shards of a/x and b/x, which node 1 coordinates.
// Node 2 leads the first, which is the home, and node 3 the second.

// coordinated is bubble with leaders apart.
func coordinated(t *testing.T, fn func(c *cluster)) {
	t.Helper()
	bubble(t, func(c *cluster) {
		c.place(shardA, c.nodes[1])
		c.place(shardB, c.nodes[2])
		fn(c)
	})
}

// script decides on calls by what they are and by how many of their kind, between the same nodes and to the same shard,
// came before: n counts from 1.
func (c *cluster) script(f func(k call, n int) interference) {
	var mu sync.Mutex
	made := make(map[call]int)
	c.setInterfere(func(k call) interference {
		mu.Lock()
		defer mu.Unlock()
		k.count = 0
		made[k]++
		return f(k, made[k])
	})
}

// step reports whether a call is a step of a transaction that node 1 has a shard take.
func (k call) step(shard uint64) bool { return k.name == "Write" && k.from == 1 && k.shard == shard }

// putBoth is a transaction that puts a value at a/x and b/x. It tells what was there, so that its home is
// prepared.
func putBoth(value string, compares ...*pb.Compare) *pb.TxnRequest {
	return &pb.TxnRequest{Compare: compares, Success: []*pb.RequestOp{
		wrapPut(&pb.PutRequest{Key: []byte("a/x"), Value: []byte(value), PrevKv: true}),
		wrapPut(&pb.PutRequest{Key: []byte("b/x"), Value: []byte(value), PrevKv: true}),
	}}
}

// puts is a transaction that puts keys.
func puts(names ...string) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for _, name := range names {
		req.Success = append(req.Success, wrapPut(&pb.PutRequest{Key: []byte(name)}))
	}
	return req
}

// absent compares a key to one that is not there.
func absent(key string) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}
}

// txn makes a transaction while the test goes on.
func (p *process) txn(ctx context.Context, req *pb.TxnRequest) *later[*pb.TxnResponse] {
	return meanwhile(func() (*pb.TxnResponse, error) { return p.router.Txn(ctx, req) })
}

// wholly checks that a/x and b/x have been written once, by one transaction, at a revision if that is not 0.
func (c *cluster) wholly(tb testing.TB, rev int64) {
	tb.Helper()
	found, _ := c.node(1).read(tb, "a/x", "b/y")
	a, b := found["a/x"], found["b/x"]
	if a.GetVersion() != 1 || b.GetVersion() != 1 || a.ModRevision != b.ModRevision || rev != 0 && a.ModRevision != rev {
		tb.Errorf("a/x is %v, b/x is %v, expected both of revision %d", a, b, rev)
	}
}

// attempt is an attempt at a transaction whose steps a test takes one by one, at leaders. Its
// coordinator is said to be node 3, which knows nothing of it.
type attempt struct {
	c    *cluster
	id   commit.ID
	open uint64
	age  commit.Age
	keys map[uint64]string // which it puts, by shard
}

// attempt returns the attempt of that counter at a transaction that puts a/x and b/x, which is
// older than those of routers.
func (c *cluster) attempt(counter uint64) *attempt {
	id := commit.ID{Node: 3, Boot: 1, Counter: counter}
	return &attempt{c: c, id: id, open: counter, age: commit.Age{First: id}, keys: map[uint64]string{shardA: "a/x", shardB: "b/x"}}
}

func (a *attempt) leader(shardID uint64) *shard.Data {
	return a.c.leader(a.c.tb.Context(), shardID).shards[shardID]
}

// prepare has a shard hold the attempt's key there.
func (a *attempt) prepare(shardID uint64) error {
	_, err := a.leader(shardID).Take(a.c.tb.Context(), nil, &shard.Step{Patient: true, Prepare: &commit.Prepare{
		ID: a.id, Age: a.age, Open: a.open, Home: shardA, Writes: keys.NewSet(keys.Point([]byte(a.keys[shardID]))),
	}})
	return err
}

// prepared has shards hold the attempt's keys.
func (a *attempt) prepared(shards ...uint64) {
	a.c.tb.Helper()
	for _, id := range shards {
		if err := a.prepare(id); err != nil {
			a.c.tb.Fatal(err)
		}
	}
}

// put is what the attempt does on a shard.
func (a *attempt) put(shardID uint64) commit.Ops {
	return commit.EncodeOps([]mvcc.Placed{{Place: uint32(shardID - shardA), Op: wrapPut(&pb.PutRequest{Key: []byte(a.keys[shardID])})}})
}

// decide has the home commit the attempt.
func (a *attempt) decide() (rev int64, err error) {
	d := &commit.Decision{ID: a.id, Shares: []commit.Share{{ShardID: shardA, Ops: a.put(shardA)}, {ShardID: shardB, Ops: a.put(shardB)}}}
	result, err := a.leader(shardA).Take(a.c.tb.Context(), nil, &shard.Step{Decision: d})
	out, _ := result.(commit.Outcome)
	return out.Rev, err
}

// abort has a shard abort the attempt, and returns what became of it there.
func (a *attempt) abort(shardID uint64) int64 {
	a.c.tb.Helper()
	out, err := a.leader(shardID).Abort(a.c.tb.Context(), a.id)
	if err != nil {
		a.c.tb.Fatal(err)
	}
	return out.Rev
}

// refused checks that a shard takes no Prepare of the attempt any more.
func (a *attempt) refused(shardID uint64) {
	a.c.tb.Helper()
	if err := a.prepare(shardID); !errors.Is(err, shard.ErrAborted) {
		a.c.tb.Errorf("prepared again: %v", err)
	}
}

// held reports whether some shard holds a key, as node 1 knows.
func (c *cluster) held(key string) bool {
	for _, d := range c.node(1).shards {
		if len(d.Store().Met(nil, []keys.Span{keys.Point([]byte(key))})) > 0 {
			return true
		}
	}
	return false
}

// delayStep has the n-th step of transactions at a shard come late.
func (c *cluster) delayStep(shard uint64, n int, by time.Duration) {
	c.script(func(k call, made int) interference {
		if k.step(shard) && made == n {
			return interference{before: by}
		}
		return interference{}
	})
}

// delayStepOfUnreachable is delayStep of a coordinator that nobody can ask.
func (c *cluster) delayStepOfUnreachable(shard uint64, n int, by time.Duration) {
	c.script(func(k call, made int) interference {
		switch {
		case k.name == "Open":
			return interference{refuse: true}
		case k.step(shard) && made == n:
			return interference{before: by}
		}
		return interference{}
	})
}

// unknownToTheLeader fails the test unless a Prepare holds b/x and node 3, which leads its shard, has not applied it.
func (c *cluster) unknownToTheLeader() {
	c.tb.Helper()
	if !c.held("b/x") || len(c.node(3).shards[shardB].Store().Met(nil, []keys.Span{{}})) > 0 {
		c.unshown("the leader knows of the Prepare already, or nobody does")
	}
}
