package leadership

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

const (
	// spreadInterval is how often a node checks whether it leads too many shards. It hands
	// one over at a time.
	spreadInterval = time.Second
	// handoversAtOnce is how many shards a node that stops hands over side by side.
	handoversAtOnce = 2
	// handoverElections is how many election timeouts one change of leader is waited for.
	handoverElections = 4
	// handoverAttempts is how often a leadership is offered before a node stops without
	// having handed it over.
	handoverAttempts = 3
	// firstBackoff is how long a node that did not take over is left alone. Each further time
	// it is twice as long, up to longestBackoff.
	firstBackoff   = 5 * time.Second
	longestBackoff = time.Minute
)

// backoff holds the nodes that are offered no leadership for a while, since they did not take
// over what they were offered last. Who offers is served by nobody meanwhile.
type backoff struct {
	mu sync.Mutex
	// until and last say for each such node when that ends, and how long it takes;
	// protected by mu.
	until map[uint64]time.Time
	last  map[uint64]time.Duration
}

// offered notes what came of an offer to a node.
func (b *backoff) offered(node uint64, taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if taken {
		delete(b.until, node)
		delete(b.last, node)
		return
	}
	if b.until == nil {
		b.until, b.last = make(map[uint64]time.Time), make(map[uint64]time.Duration)
	}
	b.last[node] = min(max(2*b.last[node], firstBackoff), longestBackoff)
	b.until[node] = time.Now().Add(b.last[node])
}

// active reports whether a node is to be left alone.
func (b *backoff) active(node uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(b.until[node])
}

// Config says what a Spreader spreads, and how it reaches other nodes.
type Config struct {
	// Self is this node.
	Self uint64
	// System and Data are this node's replicas.
	System *raft.Replica
	Data   map[uint64]*raft.Replica
	// Members are the cluster's.
	Members Members
	// Applied asks another node how far its replica of a shard has applied. It returns soon, whatever becomes of that node.
	Applied func(ctx context.Context, node, shardID uint64) (uint64, error)
	// Release has the system shard's leader give its numbers back before it goes; resume is
	// called when it has gone or stays.
	Release func(ctx context.Context) (resume func())
	// Election is Raft's timeout.
	Election time.Duration
	Log      *slog.Logger
}

// Spreader spreads the leaders of the data shards over the nodes, and hands over
// what this node leads before it stops.
type Spreader struct {
	c       Config
	backoff backoff

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// NewSpreader returns a spreader that does nothing of its own until Start.
func NewSpreader(c Config) *Spreader { return &Spreader{c: c, stop: func() {}} }

// Start looks for leaderships to hand over until Close.
func (s *Spreader) Start() {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(func() { every(ctx, spreadInterval, func() { s.spread(ctx) }) })
}

// Close ends that.
func (s *Spreader) Close() {
	s.stop()
	s.wg.Wait()
}

// Replicas returns all replicas of this node.
func (s *Spreader) Replicas() []Candidate {
	all := []Candidate{s.c.System}
	for _, r := range s.c.Data {
		all = append(all, r)
	}
	return all
}

// leads returns who leads the data shards, as this node knows it.
func (s *Spreader) leads() []placement.Lead {
	leads := make([]placement.Lead, 0, len(s.c.Data))
	for id, r := range s.c.Data {
		if node := s.leader(r); node != 0 {
			leads = append(leads, placement.Lead{Shard: id, Node: node})
		}
	}
	slices.SortFunc(leads, func(a, b placement.Lead) int { return int(a.Shard) - int(b.Shard) })
	return leads
}

// spread hands over one leadership if this node has too many.
func (s *Spreader) spread(ctx context.Context) {
	leads := s.leads()
	if len(leads) < len(s.c.Data) {
		return // somebody is being elected
	}
	// Whether a node is fit is asked only of the one that would get the leadership.
	fit := slices.DeleteFunc(s.c.Members.Voters(), s.backoff.active)
	for {
		h, ok := placement.NextHandover(s.c.Self, leads, fit)
		if !ok {
			return
		}
		if r := s.c.Data[h.Shard]; r.Steady(s.c.Members.ReplicaOf(h.Shard, h.To)) && s.caughtUp(ctx, h.To, r) {
			s.offer(ctx, s.c.Data[h.Shard], h.To)
			return
		}
		fit = slices.DeleteFunc(fit, func(n uint64) bool { return n == h.To })
	}
}

// caughtUp reports whether a node is there and its replica of a shard can lead without
// delay: whether it follows over Raft's own links, and answers calls.
func (s *Spreader) caughtUp(ctx context.Context, node uint64, r *raft.Replica) bool {
	return raft.Live(ctx, r, s.c.Members.ReplicaOf(r.ShardID(), node), s.applied(node, r))
}

// applied returns what asks a node how far its replica of a shard has applied.
func (s *Spreader) applied(node uint64, r *raft.Replica) func(context.Context) (uint64, error) {
	return func(ctx context.Context) (uint64, error) { return s.c.Applied(ctx, node, r.ShardID()) }
}

// offer has a replica hand its leadership to a node, waits for a moment until it has
// gone, and reports whether it has.
func (s *Spreader) offer(ctx context.Context, r *raft.Replica, node uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, handoverElections*s.c.Election)
	defer cancel()
	if r == s.c.System {
		resume := s.c.Release(ctx)
		defer resume()
	}
	err := r.HandOver(ctx, s.c.Members.ReplicaOf(r.ShardID(), node), s.applied(node, r))
	s.backoff.offered(node, err == nil)
	if err != nil {
		s.c.Log.Debug("leadership was not handed over", slog.Uint64("shard", r.ShardID()), slog.Any("error", err))
	}
	return err == nil
}

// Drain hands over all that this node leads, handoversAtOnce shards at a time: more of them
// slow each other down while the clients of each wait. The system shard comes last, when
// the others are served again: while it moves, they can't get numbers.
func (s *Spreader) Drain(ctx context.Context) {
	var mu sync.Mutex
	var left []uint64 // protected by mu
	handOver := func(r *raft.Replica, to []uint64) {
		if !s.handOver(ctx, r, to) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, r.ShardID())
		}
	}
	leads := s.leads()
	count := make(map[uint64]int)
	for _, lead := range leads {
		count[lead.Node]++
	}
	var under errgroup.Group
	under.SetLimit(handoversAtOnce)
	for _, lead := range leads {
		if lead.Node == s.c.Self {
			to := s.others(count)
			under.Go(func() error {
				handOver(s.c.Data[lead.Shard], to)
				return nil // told below
			})
		}
	}
	_ = under.Wait()
	if s.leader(s.c.System) == s.c.Self {
		handOver(s.c.System, s.others(count))
	}
	if len(left) > 0 && len(s.c.Members.Voters()) > 1 {
		s.c.Log.Warn("leaderships were not handed over; others are elected when this node is missed", slog.Any("shards", left))
	}
}

// leader returns the node that leads a shard, as far as this one knows, 0 if none.
func (s *Spreader) leader(r *raft.Replica) uint64 {
	return s.c.Members.NodeOf(r.ShardID(), r.Leader().ReplicaID)
}

// others returns the other nodes, the one that leads the fewest first, and counts one more
// for that.
func (s *Spreader) others(count map[uint64]int) []uint64 {
	others := slices.DeleteFunc(s.c.Members.Voters(), func(n uint64) bool { return n == s.c.Self })
	slices.SortStableFunc(others, func(a, b uint64) int { return count[a] - count[b] })
	if len(others) > 0 {
		count[others[0]]++
	}
	return others
}

// handOver hands one leadership to the first of some nodes that can take it.
func (s *Spreader) handOver(ctx context.Context, r *raft.Replica, to []uint64) bool {
	for range handoverAttempts {
		slices.SortStableFunc(to, func(a, b uint64) int { return rank(s.backoff.active(a)) - rank(s.backoff.active(b)) })
		for _, node := range to {
			if ctx.Err() != nil {
				return false
			}
			if s.caughtUp(ctx, node, r) && s.offer(ctx, r, node) {
				return true
			}
			// Who leads by now may not serve yet, but must not be asked to hand over again.
			if by := s.leader(r); by != 0 && by != s.c.Self {
				return true
			}
		}
	}
	return false
}

// rank puts those last for which something holds.
func rank(holds bool) int {
	if holds {
		return 1
	}
	return 0
}

// Move has a node lead the system shard, and the data shards that this node leads, and
// reports whether it leads the system shard.
func (s *Spreader) Move(ctx context.Context, node uint64) bool {
	for _, lead := range s.leads() {
		if lead.Node == s.c.Self && s.caughtUp(ctx, node, s.c.Data[lead.Shard]) {
			s.offer(ctx, s.c.Data[lead.Shard], node)
		}
	}
	return s.offer(ctx, s.c.System, node)
}
