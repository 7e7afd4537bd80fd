package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lock"
)

// aheadCounted counts what was asked ahead.
type aheadCounted struct {
	routed

	asked, proved *atomic.Int64
}

func (s aheadCounted) LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
	ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
) {
	s.asked.Add(1)
	ttl, passed, err := s.routed.LeaseRenewAhead(ctx, id, key)
	return ttl, func(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
		resp, err := passed(ctx, r)
		if resp != nil {
			s.proved.Add(1)
		}
		return resp, err
	}, err
}

// waiting asks for the lock "a" by a session.
func waiting(ctx context.Context, s *lock.Service, session int64) *later[*lock.Grant] {
	return meanwhile(func() (*lock.Grant, error) {
		return s.Acquire(ctx, &lock.Request{Name: "a", Session: session, Wait: time.Hour})
	})
}

// The second of a queue has asked ahead. Its node gets the release before it into its log, and hears only later that it is
// committed, and still nothing of what came behind it: that the second's lease has ended, and somebody else has the
// lock. What was asked ahead is of the past by then.
func TestLockAskedAheadIsNotGivenLate(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		first, late, next := c.secondInLine(3)
		release := c.node(1).replica(shardA).Applied() + 1
		var deaf atomic.Bool
		hear := c.drop(shardA, func(l link, m *raftpb.Message) bool {
			return l.to == 3 && (deaf.Load() && m.Commit >= release || len(m.Entries) > 0 && m.Entries[0].Index > release)
		})
		deaf.Store(true)
		c.takeFromSecond(first, next)
		time.Sleep(time.Second)
		deaf.Store(false)
		time.Sleep(time.Second)
		if at := c.node(3).replica(shardA).Applied(); at != release {
			c.unshown("node 3 has applied %d, the release is at %d", at, release)
		}
		hear()
		if g, err := late.wait(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the lock of another was given away: %+v, %v", g, err)
		}
	})
}

// The second of a queue waits at the leader, which proposes the release before it, and is deposed before it hears
// what became of that.
func TestLockAskedAheadAtADeposedLeader(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.placeAll(c.nodes[2])
		first, late, next := c.secondInLine(3)
		hear := c.drop(shardA, func(l link, m *raftpb.Message) bool { return l.to == 3 && acknowledgements(l, m) })
		lost := meanwhile(func() (struct{}, error) {
			time.Sleep(20 * time.Millisecond) // the others have the release in their logs
			c.net.sever(around(3)...)
			return struct{}{}, nil
		})
		c.takeFromSecond(first, next)
		if _, err := lost.wait(); err != nil {
			t.Fatal(err)
		}
		hear()
		c.net.heal()
		if g, err := late.wait(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the lock of another was given away: %+v, %v", g, err)
		}
	})
}

// inLine is a client of the lock "a" at a node.
type inLine struct {
	locks   *lock.Service
	session int64
	grant   *lock.Grant
}

// secondInLine has a client of node 1 take the lock "a", and another wait for it, and ask ahead, at a node.
// The third has not asked yet.
func (c *cluster) secondInLine(node uint64) (first inLine, second *later[*lock.Grant], third inLine) {
	t := c.tb
	ids := c.leasesAt(shardA, 3)
	for _, id := range ids {
		c.node(1).grant(t, id, 3600)
	}
	near := c.node(1).locks()
	store := aheadCounted{routed{c.node(node).router}, new(atomic.Int64), new(atomic.Int64)}
	far := lock.New(lock.Config{Store: store, Node: store, Patience: time.Second, Now: time.Now})
	t.Cleanup(near.Close)
	t.Cleanup(far.Close)
	g, err := waiting(t.Context(), near, ids[0]).wait()
	if err != nil {
		t.Fatal(err)
	}
	second = waiting(t.Context(), far, ids[1])
	for store.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	return inLine{near, ids[0], g}, second, inLine{near, ids[2], nil}
}

// takeFromSecond has the first release the lock, ends the session of the second, and has the third take it.
func (c *cluster) takeFromSecond(first, third inLine) {
	t := c.tb
	if err := first.locks.Release(t.Context(), "a", "", first.grant.Token, ""); err != nil {
		t.Fatal(err)
	}
	c.node(1).revoke(t, c.leasesAt(shardA, 3)[1])
	if _, err := waiting(t.Context(), third.locks, third.session).wait(); err != nil {
		t.Fatal(err)
	}
}

// A lock that goes from node to node is granted by what was asked ahead on each.
func TestLockGoesRoundAskedAhead(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		ids := c.leasesAt(shardA, 12)
		asked, proved := new(atomic.Int64), new(atomic.Int64)
		var waits []*later[*lock.Grant]
		services := make([]*lock.Service, nodes)
		for i := range services {
			store := aheadCounted{routed{c.node(uint64(i + 1)).router}, asked, proved}
			services[i] = lock.New(lock.Config{Store: store, Node: store, Patience: time.Second, Now: time.Now})
			defer services[i].Close()
		}
		for i, id := range ids {
			c.node(1).grant(t, id, 3600)
			waits = append(waits, waiting(t.Context(), services[i%nodes], id))
			time.Sleep(time.Second)
		}
		last := int64(0)
		for i, w := range waits {
			g, err := w.wait()
			if err != nil || g.Lease != ids[i] || g.Token <= last {
				t.Fatalf("turn %d: %+v, %v", i, g, err)
			}
			last = g.Token
			time.Sleep(20 * time.Millisecond)
			if err := services[i%nodes].Release(t.Context(), "a", "", g.Token, ""); err != nil {
				t.Fatal(err)
			}
		}
		// The first stood alone.
		if asked.Load() != 11 || proved.Load() != 11 {
			t.Errorf("%d asked ahead, %d were proved by a release", asked.Load(), proved.Load())
		}
	})
}
