package sim

import (
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/placement"
)

// Leases that end together, each with a key on another shard than its home, share the
// entries that end them, drop their keys, forget them and take the tombstones away. None ends
// early, all end soon, and meanwhile another lease is renewed and keys put without delay.
func TestManyLeasesEndTogether(t *testing.T) {
	bubble(t, func(c *cluster) {
		const other, ttl = 2001, 30
		count := unlessShort(2000, 400)
		const shared, late, delay = 60, time.Second, 100 * time.Millisecond
		t, p := c.tb, c.node(1)
		before := p.entries()
		abreast(t, count, func(id int64) error {
			if _, err := p.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: ttl}); err != nil {
				return err
			}
			home := c.homeOf(id) - placement.FirstDataShard
			return p.attach(t, fmt.Sprintf("%c/%d", 'a'+(home+1)%4, id), id)
		})
		if n := p.entries() - before; n > uint64(count)/5 {
			t.Errorf("%d leases were granted and attached in %d entries", count, n)
		}
		p.grant(t, other, 2)
		renewed := time.Now()
		abreast(t, count, func(id int64) error {
			_, err := p.router.LeaseRenew(t.Context(), id)
			return err
		})
		end := time.Now().Add(ttl * time.Second)
		u := p.use(t, other, "b/used")
		time.Sleep(time.Until(renewed.Add(ttl*time.Second - time.Millisecond)))
		if n := p.leases(); n != count+1 {
			t.Errorf("%d leases are there before the time of any has passed", n)
		}
		before = p.entries() - u.putsSoFar()
		for p.leases() > 1 && time.Since(end) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(end); took > late {
			t.Errorf("the ends took %v", took)
		}
		if found, _ := p.read(t, "a", "e"); len(found) != 1 {
			t.Errorf("%d keys are left", len(found))
		}
		time.Sleep(20 * time.Second)
		if n := p.entries() - u.putsSoFar() - before; n > shared {
			t.Errorf("%d leases ended in %d entries", count, n)
		}
		u.end()
		if u.slowestPut > delay || u.slowestRenewal > delay {
			t.Errorf("a put took %v and a renewal %v meanwhile", u.slowestPut, u.slowestRenewal)
		}
	})
}

// abreast calls fn for the leases 1 to count, many at a time.
func abreast(tb testing.TB, count int, fn func(id int64) error) {
	tb.Helper()
	var g errgroup.Group
	g.SetLimit(500)
	for id := int64(1); id <= int64(count); id++ {
		g.Go(func() error { return fn(id) })
	}
	if err := g.Wait(); err != nil {
		tb.Fatal(err)
	}
}

// entries returns how many entries the data shards have applied.
func (p *process) entries() (sum uint64) {
	for _, d := range p.shards {
		sum += d.Replica().Applied()
	}
	return sum
}

// leases returns how many leases there are, ending or not.
func (p *process) leases() (sum int) {
	for _, d := range p.shards {
		sum += len(d.Leases())
	}
	return sum
}

// use is a client that puts a key and renews a lease all the time.
type use struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// puts counts those that have been answered; protected by mu.
	puts uint64
	// slowestPut and slowestRenewal may be read when the client has ended.
	slowestPut, slowestRenewal time.Duration
}

func (p *process) use(tb testing.TB, id int64, key string) *use {
	tb.Helper()
	u := &use{stop: make(chan struct{})}
	u.wg.Go(func() {
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for {
			began := time.Now()
			if ttl, err := p.router.LeaseRenew(tb.Context(), id); err != nil || ttl.TTL == 0 {
				tb.Errorf("renewal: %v, %v", ttl, err)
			}
			put := time.Now()
			u.slowestRenewal = max(u.slowestRenewal, put.Sub(began))
			if _, err := p.router.Put(tb.Context(), &pb.PutRequest{Key: []byte(key)}); err != nil {
				tb.Errorf("put: %v", err)
			}
			u.slowestPut = max(u.slowestPut, time.Since(put))
			u.mu.Lock()
			u.puts++
			u.mu.Unlock()
			select {
			case <-t.C:
			case <-u.stop:
				return
			}
		}
	})
	return u
}

func (u *use) putsSoFar() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.puts
}

func (u *use) end() {
	close(u.stop)
	u.wg.Wait()
}
