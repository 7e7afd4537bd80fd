package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
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

func (r routed) Prove(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	return r.RangeInShard(auth.With(ctx, auth.Server), req)
}

// locks returns a service of locks over a node.
func (p *process) locks() *lock.Service {
	return lock.New(lock.Config{Store: routed{p.router}, Node: routed{p.router}, Patience: time.Second, Now: time.Now})
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

// cutAndHeal has the network lose messages and be late until ctx ends, with one node or none cut off, for
// up to cut, and again after up to whole. Then all is well.
func (c *cluster) cutAndHeal(ctx context.Context, cut, whole time.Duration) {
	rnd := rand.New(rand.NewPCG(c.options.seed, 1))
	c.net.setFaults(faults{lose: 20, reorder: 20, late: 20 * time.Millisecond, loseAnswer: 10, loseCall: 10})
	for ctx.Err() == nil {
		if node := uint64(1 + rnd.IntN(nodes+1)); node <= nodes {
			c.net.sever(around(node)...)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(cut))))
		c.net.heal()
		time.Sleep(time.Duration(rnd.Int64N(int64(whole))))
	}
	c.net.setFaults(faults{})
}

// Clients of all nodes take a lock, while nodes are cut off and
// heal, and messages are lost and late: whoever is told that it has the lock has it alone until
// it asks to release it, by a token above all before.
func TestLockUnderFaults(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		services := make([]*lock.Service, nodes)
		for i := range services {
			services[i] = c.node(uint64(i + 1)).locks()
			defer services[i].Close()
		}
		end, stop := context.WithTimeout(t.Context(), unlessShort(4*time.Minute, 30*time.Second))
		defer stop()
		var faulty sync.WaitGroup
		faulty.Go(func() { c.cutAndHeal(end, 6*time.Second, 3*time.Second) })
		turns := &turnsTaken{}
		var clients sync.WaitGroup
		for i := range 6 {
			client := &lockClient{
				name: fmt.Sprint("client ", i), services: services, turns: turns, rnd: rand.New(rand.NewPCG(c.options.seed, uint64(i)+2)),
			}
			clients.Go(func() {
				for end.Err() == nil {
					client.turn(t.Context())
				}
			})
		}
		clients.Wait()
		faulty.Wait()
		for _, fault := range turns.faults {
			t.Error(fault)
		}
		if turns.n < 20 {
			c.unshown("%d turns", turns.n)
		}
		time.Sleep(2 * time.Minute) // leases of calls that failed end
		r, err := c.node(1).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a/"), RangeEnd: []byte("a0")})
		if err != nil || r.Count > 0 {
			t.Errorf("keys are left: %v, %v", r, err)
		}
	})
}

// turnsTaken is who was told that it has the lock.
type turnsTaken struct {
	mu     sync.Mutex
	holder string
	last   int64
	n      int
	faults []string
}

func (h *turnsTaken) begin(client string, token int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder != "" || token <= h.last {
		h.faults = append(h.faults, fmt.Sprintf("%s has the lock by %d, %q by %d", client, token, h.holder, h.last))
	}
	h.holder, h.last = client, token
	h.n++
}

func (h *turnsTaken) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holder = ""
}

// lockClient takes turns through any node.
type lockClient struct {
	name     string
	services []*lock.Service
	turns    *turnsTaken
	rnd      *rand.Rand
}

func (l *lockClient) any() *lock.Service { return l.services[l.rnd.IntN(len(l.services))] }

func (l *lockClient) turn(ctx context.Context) {
	r := &lock.Request{
		Name: "a", Client: l.name, ID: fmt.Sprint(l.rnd.Int64()), TTL: time.Minute,
		Wait: time.Duration(l.rnd.IntN(8000)) * time.Millisecond,
	}
	for range 1 + l.rnd.IntN(3) { // made again where it failed
		g, err := l.any().Acquire(ctx, r)
		if err != nil {
			continue
		}
		l.turns.begin(l.name, g.Token)
		time.Sleep(time.Duration(l.rnd.IntN(1000)) * time.Millisecond)
		l.turns.end()
		for l.any().Release(ctx, "a", l.name, g.Token, r.ID) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		return
	}
}
