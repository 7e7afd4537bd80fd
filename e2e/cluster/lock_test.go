package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// K01: a holder that is cut off from the store loses the lock when its TTL is over, not
// earlier and not much later, and can do nothing with it when it comes back (10811, 11457,
// apache/curator#727, redisson/redisson#3636, redisson/redisson#3187).
func TestHolderCutOffFromTheStore(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		var links []*harness.Link
		var addrs []string
		for _, n := range c.Nodes {
			l := harness.NewLink(t, n.Client)
			links, addrs = append(links, l), append(addrs, l.Addr)
		}
		cut := func(cut bool) {
			for _, l := range links {
				l.SetCut(cut)
			}
		}
		a, err := faults.Dial(addrs...)
		c.must(err)
		t.Cleanup(func() { a.Close() })
		var held []*holder
		for _, name := range inShards(shards, "lock") {
			held = append(held, hold(c, a, name, 5))
		}
		var waiting sync.WaitGroup
		for _, h := range held {
			h.renew()
			waiting.Go(func() { h.next = h.await() })
		}
		cut(true)
		waiting.Wait()
		cut(false)
		for _, h := range held {
			h.back()
		}
	})
}

// holder has a lock by single calls, so that the moment of its last renewal is known.
type holder struct {
	*cluster
	c     *clientv3.Client
	name  string
	ttl   int64
	lease clientv3.LeaseID
	// key is the lock's, token its create revision.
	key   string
	token int64
	// asked and answered are when the last renewal was.
	asked, answered time.Time
	// next is who got the lock afterwards.
	next *concurrency.Mutex
}

func hold(c *cluster, client *clientv3.Client, name string, ttl int64) *holder {
	c.t.Helper()
	g, err := client.Grant(c.bound(), ttl)
	c.must(err)
	l, err := v3lockpb.NewLockClient(client.ActiveConnection()).Lock(c.bound(), &v3lockpb.LockRequest{Name: []byte(name), Lease: int64(g.ID)})
	c.must(err)
	h := &holder{cluster: c, c: client, name: name, ttl: ttl, lease: g.ID, key: string(l.Key)}
	h.token = createdAt(c, h.key)
	return h
}

// createdAt returns the create revision of a key, 0 for none.
func createdAt(c *cluster, key string) (rev int64) {
	c.t.Helper()
	c.until("get "+key, func(ctx context.Context) error {
		r, err := c.clients[0].Get(ctx, key)
		if err == nil && len(r.Kvs) == 1 {
			rev = r.Kvs[0].CreateRevision
		}
		return err
	})
	return rev
}

func (h *holder) renew() {
	h.t.Helper()
	h.asked = time.Now()
	_, err := h.c.KeepAliveOnce(h.bound(), h.lease)
	h.must(err)
	h.answered = time.Now()
}

// await has another client wait for the lock, and sees when it gets it.
func (h *holder) await() *concurrency.Mutex {
	s, err := concurrency.NewSession(h.clients[1], concurrency.WithTTL(60))
	if err != nil {
		h.t.Error(err)
		return nil
	}
	m := concurrency.NewMutex(s, h.name)
	if err := m.Lock(h.bound()); err != nil {
		h.t.Errorf("%s: %v", h.name, err)
		return nil
	}
	ttl := time.Duration(h.ttl) * time.Second
	if since := time.Since(h.asked); since < ttl {
		h.t.Errorf("%s was given away %v after its holder asked to renew", h.name, since)
	}
	if since := time.Since(h.answered); since > ttl+2*time.Second+promptly {
		h.t.Errorf("%s was given away %v after its holder had renewed", h.name, since)
	} else {
		h.t.Logf("%s was given away %v after its holder had renewed", h.name, since)
	}
	return m
}

// back has the old holder do all that it can with a lock that it lost.
func (h *holder) back() {
	h.t.Helper()
	if h.next == nil {
		return
	}
	h.until("renew too late", func(ctx context.Context) error {
		_, err := h.c.KeepAliveOnce(ctx, h.lease)
		if err == nil {
			h.t.Fatalf("%s: the lost lease was renewed", h.name)
		}
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
	fenced := clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.token)
	r, err := h.c.Txn(h.bound()).If(fenced).Then(clientv3.OpPut(h.name+"/guarded", "late")).Commit()
	h.must(err)
	if r.Succeeded {
		h.t.Errorf("%s: the old holder wrote with its token", h.name)
	}
	if _, err := h.c.Revoke(h.bound(), h.lease); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		h.t.Errorf("%s: revoke of the lost lease: %v", h.name, err)
	}
	_, err = v3lockpb.NewLockClient(h.c.ActiveConnection()).Unlock(h.bound(), &v3lockpb.UnlockRequest{Key: []byte(h.key)})
	h.must(err)
	if token := createdAt(h.cluster, h.next.Key()); token <= h.token {
		h.t.Errorf("%s: the next holder has token %d after %d", h.name, token, h.token)
	}
	fenced = clientv3.Compare(clientv3.CreateRevision(h.next.Key()), ">", h.token)
	r, err = h.clients[2].Txn(h.bound()).If(fenced, h.next.IsOwner()).Then(clientv3.OpPut(h.name+"/guarded", "now")).Commit()
	h.must(err)
	if !r.Succeeded {
		h.t.Errorf("%s: the next holder lost it too", h.name)
	}
}

// K19: after all nodes stood still for longer than its TTL, a session that its client has
// given up ends soon; campaigns with it are answered, and a new one wins
// (pingcap/tiflow#5745, distributedio/titan#220, hashicorp/vault#3031, pingcap/tidb#3869).
func TestCampaignAfterAllStoodStill(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		ttl := harness.Sized(4, 15)
		leader := c.leader()
		client := c.clients[(leader+1)%3]
		var old []*concurrency.Session
		names := inShards(shards, "election")
		for range names {
			s, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
			c.must(err)
			old = append(old, s)
		}
		pause(t.Context(), 2*time.Second) // each client has had an answer, and counts from it
		for _, n := range c.Nodes {
			c.must(n.Freeze())
		}
		pause(t.Context(), time.Duration(ttl)*time.Second*4/3)
		for i := range c.Nodes {
			if i != leader {
				c.must(c.Nodes[i].Thaw())
			}
		}
		thawed := time.Now()
		// What is sent before the nodes have found out that their streams are dead may be lost
		// with them, and then nobody knows what became of it until its time is over.
		for _, name := range names {
			writeSoon(t.Context(), t, client, name+"-up")
		}
		for i, name := range names {
			select {
			case <-old[i].Done():
			case <-time.After(promptly):
				t.Errorf("the client takes session %d for alive", i)
			}
			// Nobody ends a lease for time that passed while it stood still, so the session
			// may live on in the store: then it wins, and has until its TTL is over.
			c.campaign(name, old[i], 10*time.Second, nil)
		}
		for i, name := range names {
			c.until("end of the session", func(ctx context.Context) error {
				r, err := client.TimeToLive(ctx, old[i].Lease())
				if err == nil && r.TTL >= 0 {
					err = fmt.Errorf("%d s are left", r.TTL)
				}
				return err
			})
			if took, most := time.Since(thawed), time.Duration(ttl)*time.Second+2*promptly; took > most {
				t.Errorf("the session ended %v after the nodes went on", took)
			}
			c.campaign(name, old[i], promptly, rpctypes.ErrLeaseNotFound)
			s, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
			c.must(err)
			e := concurrency.NewElection(s, name)
			c.must(e.Campaign(c.bound(), "new"))
			led, err := e.Leader(c.bound())
			if err != nil || string(led.Kvs[0].Value) != "new" {
				t.Errorf("%s is led by %v, %v", name, led, err)
			}
		}
		c.must(c.Nodes[leader].Thaw())
		c.healthy()
	})
}

// campaign campaigns with a session that is lost, or about to be, and wants an answer in
// time: that the lease is gone, or unless want says so that it won.
func (c *cluster) campaign(name string, s *concurrency.Session, limit time.Duration, want error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	err := concurrency.NewElection(s, name).Campaign(ctx, "old")
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) && (err != nil || want != nil) {
		c.t.Errorf("campaign for %s with a lost session: %v", name, err)
	}
}

// K27: the tokens of a lock grow over deaths and moves of leaders, restarts of all nodes,
// compactions, and deletions of the lock's record (11788, 11457).
func TestTokensGrowOverFaults(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := newCluster(t, shards, nil)
		all := c.all()
		session := func() (s *concurrency.Session) {
			c.until("session", func(ctx context.Context) (err error) {
				s, err = concurrency.NewSession(all, concurrency.WithTTL(60))
				return err
			})
			return s
		}
		locks := make(map[string]int64) // the last token
		for _, name := range inShards(shards, "tokens") {
			locks[name] = 0
		}
		s := session()
		for round := range harness.Sized(7, 1000/shards) {
			for name, last := range locks {
				m := concurrency.NewMutex(s, name)
				c.until("lock", m.Lock)
				token := createdAt(c, m.Key())
				if token <= last {
					t.Fatalf("round %d: %s has token %d after %d", round, name, token, last)
				}
				locks[name] = token
				if round%6 == 5 {
					_, err := all.Delete(c.bound(), m.Key())
					c.must(err)
				}
				c.until("unlock", func(ctx context.Context) error {
					if err := m.Unlock(ctx); err != nil && !errors.Is(err, concurrency.ErrLockReleased) {
						return err
					}
					return nil
				})
			}
			c.disturb(round, all)
		}
	})
}

// disturb does to a cluster what a lock must bear, another thing each round.
func (c *cluster) disturb(round int, all *clientv3.Client) {
	c.t.Helper()
	switch round % 6 {
	case 0:
		c.until("move leaders", c.moveLeaders)
	case 1:
		c.until("compact", func(ctx context.Context) error {
			r, err := all.Get(ctx, "head")
			if err != nil {
				return err
			}
			_, err = all.Compact(ctx, r.Header.Revision)
			if errors.Is(err, rpctypes.ErrCompacted) {
				return nil // an earlier try was carried out
			}
			return err
		})
	case 2:
		leader := c.leader()
		c.must(c.Nodes[leader].Kill())
		c.must(c.Nodes[leader].Launch())
	case 3:
		for _, n := range c.Nodes {
			c.must(n.Kill())
		}
		for _, n := range c.Nodes {
			c.must(n.Launch())
		}
	}
}
