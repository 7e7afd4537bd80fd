package shard

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// silentShards are shards on nodes that stand still: no question is answered.
type silentShards struct {
	deadShards
	// asked is told of each question to the home of a transaction.
	asked chan time.Time
}

func (silentShards) Open(ctx context.Context, _ commit.ID) bool {
	<-ctx.Done()
	return false
}

func (s silentShards) Settled(ctx context.Context, _ uint64, _ commit.ID) (commit.Outcome, error) {
	s.asked <- time.Now()
	<-ctx.Done()
	return commit.Outcome{}, context.Cause(ctx)
}

// settleWithin is how long a transaction that nobody goes on with may hold keys, once the shards
// concerned have leaders.
const settleWithin = 2 * time.Second

// A node that stands still coordinates nothing: that it does not answer is found out in time, however
// long its connections last.
func TestCoordinatorThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.data.Connect(silentShards{})
		ctx, cancel := context.WithTimeout(t.Context(), settleWithin-doubtTicks*raft.LeadershipTick)
		defer cancel()
		if out, err := nd.data.Settled(ctx, commit.ID{Node: 7, Boot: 1, Counter: 1}); err != nil || out.Rev != 0 {
			t.Errorf("a home that asks a silent coordinator says %+v, %v", out, err)
		}
	})
}

// A new leader asks at once about transactions that have held keys since an earlier term.
func TestNewLeaderAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		asked := make(chan time.Time, 1)
		nd.data.Connect(silentShards{asked: asked})
		b := nd.db.NewBatch()
		p := &commit.Prepare{ID: commit.ID{Node: 7, Boot: 1, Counter: 1}, Home: testShard + 1}
		if err := nd.data.transactions.Hold(b, p); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		nd.data.settler.began()
		if took := (<-asked).Sub(began); took > raft.LeadershipTick {
			t.Errorf("it asked after %v", took)
		}
	})
}
