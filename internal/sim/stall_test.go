package sim

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// staller says for how long a goroutine of a node stands still at a place between two
// steps of a rule in a shard; raft.HostConfig names the places.
type staller func(node, shard uint64, at string) time.Duration

func (c *cluster) setStall(s staller) { c.stalls.Store(&s) }

// stall has the goroutine that calls it stand still for as long as the test wants.
func (c *cluster) stall(node, shard uint64, at string) {
	if s := c.stalls.Load(); s != nil {
		if d := (*s)(node, shard, at); d > 0 {
			time.Sleep(d)
		}
	}
}

// stallOnce has the first goroutine that comes to a place of a node and shard stand still
// until resume is called. reached is closed when it is there.
func (c *cluster) stallOnce(node, shard uint64, at string) (reached <-chan struct{}, resume func()) {
	var came atomic.Bool
	there, done := make(chan struct{}), make(chan struct{})
	c.setStall(func(n, s uint64, place string) time.Duration {
		if n == node && s == shard && place == at && !came.Swap(true) {
			close(there)
			<-done
		}
		return 0
	})
	return there, sync.OnceFunc(func() { close(done) })
}

// slowApply has a node apply what a shard has committed later than the others.
func (c *cluster) slowApply(node, shard uint64, by time.Duration) {
	c.setStall(func(n, s uint64, at string) time.Duration {
		if n == node && s == shard && at == "apply" {
			return by
		}
		return 0
	})
}

// A random staller's bounds.
const (
	// slowReplicas of all are slow to apply at a time, by up to slowest a run of entries.
	slowReplicas = 4
	slowest      = 60 * time.Millisecond
	// longestStall bounds what a goroutine stands still elsewhere.
	longestStall = 80 * time.Millisecond
)

// randomStalls is a staller that draws: replicas that apply at different speeds, other ones
// each time shuffle is called, and a chance in thousandths to stand still elsewhere.
type randomStalls struct {
	chance int

	mu  sync.Mutex
	rnd *rand.Rand
	// slow is how long each slow replica takes, by node and shard; protected by mu.
	slow map[[2]uint64]time.Duration
}

func (r *randomStalls) shuffle(shards []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = make(map[[2]uint64]time.Duration)
	for range slowReplicas {
		at := [2]uint64{1 + r.rnd.Uint64N(nodes), shards[r.rnd.IntN(len(shards))]}
		r.slow[at] = time.Duration(r.rnd.Int64N(int64(slowest)))
	}
}

func (r *randomStalls) stall(node, shard uint64, at string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at == "apply" {
		return r.slow[[2]uint64{node, shard}]
	}
	if r.rnd.IntN(1000) >= r.chance {
		return 0
	}
	return time.Duration(r.rnd.Int64N(int64(longestStall)))
}
