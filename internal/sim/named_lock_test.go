package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/router"
)

// routed is a router as locks stand on it.
type routed struct{ *router.Router }

func (r routed) Watchers() lock.Watchers { return r.NewWatchGroup() }

func (r routed) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	resp, err := r.Router.LeaseRenew(ctx, id)
	if errors.Is(err, lease.ErrNotFound) {
		return &pb.LeaseKeepAliveResponse{ID: id}, nil
	}
	return resp, err
}

// locks returns a service of locks over a node.
func (p *process) locks() *lock.Service {
	return lock.New(routed{p.router}, routed{p.router}, time.Now)
}

// A node that was cut off hears of everything late, and in order: first that the client
// which waits there is the next, then that its lease has ended. Meanwhile somebody else has
// the lock, so that it must not be given on the first word.
func TestLockIsNotGivenLate(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		ids := c.leasesAt(shardA, 3)
		near, far := c.node(1).locks(), c.node(3).locks()
		defer near.Close()
		defer far.Close()
		for _, id := range ids {
			c.node(1).grant(t, id, 3600)
		}
		first, err := near.Lock(t.Context(), []byte("a"), ids[0])
		if err != nil {
			t.Fatal(err)
		}
		late := meanwhile(func() (lock.Held, error) { return far.Lock(t.Context(), []byte("a"), ids[1]) })
		time.Sleep(time.Second)
		next := meanwhile(func() (lock.Held, error) { return near.Lock(t.Context(), []byte("a"), ids[2]) })
		time.Sleep(time.Second)

		c.net.sever(around(3)...)
		if _, err := near.Unlock(t.Context(), []byte(first.Key)); err != nil {
			t.Fatal(err)
		}
		c.node(1).revoke(t, ids[1])
		held, err := next.wait()
		if err != nil || held.Token <= first.Token {
			t.Fatalf("%+v, %v", held, err)
		}
		c.net.heal()
		if h, err := late.wait(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the lock of another was given away: %+v, %v", h, err)
		}
	})
}

// The lock is handed on from node to node, in the order of asking, while Raft loses and
// delays messages.
func TestLockGoesRound(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		ids := c.leasesAt(shardB, 6)
		services := make([]*lock.Service, nodes)
		for i := range services {
			services[i] = c.node(uint64(i + 1)).locks()
			defer services[i].Close()
		}
		var asked []*later[lock.Held]
		for i, id := range ids {
			c.node(1).grant(t, id, 3600)
			asked = append(asked, meanwhile(func() (lock.Held, error) {
				return services[i%nodes].Lock(t.Context(), []byte("a"), id)
			}))
			time.Sleep(time.Second)
		}
		c.net.setFaults(faults{lose: 50, reorder: 50, late: 20 * time.Millisecond, loseAnswer: 20})
		last := int64(0)
		for i, a := range asked {
			h, err := a.wait()
			if err != nil || h.Lease != ids[i] || h.Token <= last {
				t.Fatalf("turn %d: %+v, %v", i, h, err)
			}
			last = h.Token
			synctest.Wait()
			if _, err := services[0].Unlock(t.Context(), []byte(h.Key)); err != nil {
				t.Fatal(err)
			}
		}
		r, err := c.node(1).router.Range(context.WithoutCancel(t.Context()), &pb.RangeRequest{Key: []byte("a/"), RangeEnd: []byte("a0")})
		if err != nil || r.Count > 0 {
			t.Errorf("keys are left: %v, %v", r, err)
		}
	})
}
