//go:build soak

package node

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
)

// Leases that end together, each with a key on another shard than its home, end soon
// and in few entries; none ends early, and meanwhile others are renewed and keys put.
func TestManyLeasesEndTogether(t *testing.T) {
	const count, other, ttl = 100_000, 100_001, 90
	// Each end is a transaction of its own over two shards, and dozens of their steps go in an entry.
	const shared, late, delay = count / 20, time.Minute, 5 * time.Second
	dir := t.TempDir()
	n := startNode(t, vfs.Default, raftvfs.Default, func(o *Options) {
		o.Config.DataDir, o.Config.InitialSplits = dir, [][]byte{[]byte("b"), []byte("c"), []byte("d")}
	})
	c := &crashable{t: t, node: n}
	defer c.stop()
	if _, err := n.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: other, TTL: 5}); err != nil {
		t.Fatal(err)
	}
	u := use(t, n, other)
	defer u.end()

	measured := &phase{n: n, began: time.Now(), entries: n.entries()}
	abreast(t, count, func(id int64) error {
		if _, err := n.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: ttl}); err != nil {
			return err
		}
		away := (n.homeOf(t, id) - placement.FirstDataShard + 1) % 4
		_, err := n.router.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "%c/%d", 'a'+rune(away), id), Lease: id})
		return err
	})
	measured.done(t, u, "grants and puts")
	renewed := time.Now()
	abreast(t, count, func(id int64) error {
		_, err := n.router.LeaseRenew(t.Context(), id)
		return err
	})
	end := time.Now().Add(ttl * time.Second)
	measured.done(t, u, "renewals")
	time.Sleep(time.Until(renewed.Add(ttl*time.Second - 50*time.Millisecond)))
	if got := n.leases(); got != count+1 {
		t.Errorf("%d leases are there before the time of any has passed", got)
	}
	measured.done(t, u, "silence")
	for n.leases() > 1 && time.Since(end) < 10*time.Minute {
		time.Sleep(500 * time.Millisecond) // counting them takes a while
	}
	took := time.Since(end)
	slowest, ending := measured.done(t, u, "ends")
	time.Sleep(30 * time.Second)
	_, burying := measured.done(t, u, "burials")
	t.Logf("the last was gone %v after its time", took)
	if took > late || slowest > delay {
		t.Errorf("the ends took %v, and a call %v meanwhile", took, slowest)
	}
	if ending+burying > shared {
		t.Errorf("%d leases ended in %d entries", count, ending+burying)
	}
	resp, err := n.router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("e"), CountOnly: true})
	if err != nil || resp.Count != 1 {
		t.Errorf("%d keys are left: %v", resp.GetCount(), err)
	}
}

// abreast calls fn for the leases 1 to count, many at a time.
func abreast(t *testing.T, count int64, fn func(id int64) error) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(1000)
	for id := int64(1); id <= count; id++ {
		g.Go(func() error { return fn(id) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// homeOf returns the shard that is the home of a lease.
func (n *Node) homeOf(t *testing.T, id int64) uint64 {
	t.Helper()
	for shardID, d := range n.shards {
		if d.Shape().Owned.Covers(keys.LeasePositions(id)) {
			return shardID
		}
	}
	t.Fatalf("lease %d has no home", id)
	return 0
}

// entries returns how many entries the data shards have applied.
func (n *Node) entries() (sum int64) {
	for _, d := range n.shards {
		sum += int64(d.Replica().Applied())
	}
	return sum
}

// leases returns how many leases there are, ending or not.
func (n *Node) leases() (sum int) {
	for _, d := range n.shards {
		sum += len(d.Leases())
	}
	return sum
}

// user is a client that puts a key and renews a lease all the time.
type user struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// puts and renewals are how long those took that have been answered since somebody
	// asked; protected by mu.
	puts, renewals []time.Duration
}

func use(t *testing.T, n *Node, id int64) *user {
	t.Helper()
	u := &user{stop: make(chan struct{})}
	u.wg.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for {
			began := time.Now()
			if left, err := n.router.LeaseRenew(t.Context(), id); err != nil || left.TTL == 0 {
				t.Errorf("renewal: %v, %v", left, err)
			}
			between := time.Now()
			if _, err := n.router.Put(t.Context(), &pb.PutRequest{Key: []byte("b/used")}); err != nil {
				t.Errorf("put: %v", err)
			}
			u.mu.Lock()
			u.renewals, u.puts = append(u.renewals, between.Sub(began)), append(u.puts, time.Since(between))
			u.mu.Unlock()
			select {
			case <-pace.C:
			case <-u.stop:
				return
			}
		}
	})
	return u
}

func (u *user) end() {
	close(u.stop)
	u.wg.Wait()
}

// phase is a part of a test that is measured.
type phase struct {
	n       *Node
	began   time.Time
	entries int64
}

// done tells how the phase went and begins the next. It returns how long the slowest
// call of the user took, and the number of entries beside the user's.
func (p *phase) done(t *testing.T, u *user, name string) (slowest time.Duration, entries int64) {
	t.Helper()
	u.mu.Lock()
	puts, renewals := u.puts, u.renewals
	u.puts, u.renewals = nil, nil
	u.mu.Unlock()
	entries = p.n.entries() - p.entries - int64(len(puts))
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	slices.Sort(puts)
	slices.Sort(renewals)
	t.Logf("%s: %v, %d entries, heap %d MB; puts p99 %v, max %v; renewals p99 %v, max %v",
		name, time.Since(p.began).Round(time.Millisecond), entries, memory.HeapAlloc>>20,
		puts[len(puts)*99/100], puts[len(puts)-1], renewals[len(renewals)*99/100], renewals[len(renewals)-1])
	p.began, p.entries = time.Now(), p.n.entries()
	return max(puts[len(puts)-1], renewals[len(renewals)-1]), entries
}
