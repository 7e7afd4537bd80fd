package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/router"
)

const (
	// spreadEvery is how often a node looks whether it leads too many shards. It hands
	// one over at a time.
	spreadEvery = time.Second
	// handoversAtOnce is how many shards a node that stops hands over side by side.
	handoversAtOnce = 2
	// handoverElections is how many election timeouts one change of leader is waited for.
	handoverElections = 4
	// handoverAttempts is how often a leadership is offered before a node stops without
	// having handed it over.
	handoverAttempts = 3
	// maxHandoverLag is how many entries a replica may be behind to be made leader.
	maxHandoverLag = 500
	// appliedElections is how many election timeouts another node has to say how far it is.
	appliedElections = 2
	// firstRest is how long a node that did not take over is left alone. Each further time
	// it is twice as long, up to longestRest.
	firstRest   = 5 * time.Second
	longestRest = time.Minute
)

// rests are the nodes that are offered no leadership for a while, since they did not take
// over what they were offered last. Who offers is served by nobody meanwhile.
type rests struct {
	mu sync.Mutex
	// until and last say for each such node when that ends, and how long it takes;
	// protected by mu.
	until map[uint64]time.Time
	last  map[uint64]time.Duration
}

// offered notes what came of an offer to a node.
func (r *rests) offered(node uint64, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if taken {
		delete(r.until, node)
		delete(r.last, node)
		return
	}
	if r.until == nil {
		r.until, r.last = make(map[uint64]time.Time), make(map[uint64]time.Duration)
	}
	r.last[node] = min(max(2*r.last[node], firstRest), longestRest)
	r.until[node] = time.Now().Add(r.last[node])
}

// rests reports whether a node is to be left alone.
func (r *rests) rests(node uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until[node])
}

// leaderships spreads the leaders of the data shards over the nodes, and hands over
// what this node leads before it stops.
type leaderships struct {
	self  uint64
	nodes []uint64
	// system and data are this node's replicas.
	system *raft.Replica
	data   map[uint64]*raft.Replica
	// nodeOf and replicaOf map the members of a shard.
	nodeOf    func(shardID, replicaID uint64) uint64
	replicaOf func(shardID, node uint64) uint64
	// applied asks another node how far its replica of a shard has applied.
	applied func(ctx context.Context, node, shardID uint64) (uint64, error)
	// election is Raft's timeout.
	election time.Duration
	resting  rests
	log      *slog.Logger

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// openLeaders returns how the leaders on other nodes are found, nil where there are none.
func (n *Node) openLeaders() router.Leaders {
	if n.mesh == nil {
		return nil
	}
	nodeOf := func(shardID, replicaID uint64) uint64 {
		if shardID == placement.SystemShard {
			return n.cluster.NodeOf(replicaID)
		}
		return n.cluster.State().Shards[shardID].Replicas[replicaID]
	}
	found := &remote.Leaders{Mesh: n.mesh, Shards: n.shards, NodeOf: nodeOf}
	n.leaders = &leaderships{
		self: n.roster.self, system: n.cluster.Replica(), data: make(map[uint64]*raft.Replica),
		nodeOf: nodeOf, replicaOf: func(_, node uint64) uint64 { return replicaOf(n.roster.first, node) },
		applied: found.Applied, election: n.electionTimeout, log: n.log, stop: func() {},
	}
	for _, m := range n.roster.first {
		n.leaders.nodes = append(n.leaders.nodes, m.ID)
	}
	for id, d := range n.shards {
		n.leaders.data[id] = d.Replica()
	}
	return found
}

func (l *leaderships) start() {
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(func() { every(ctx, spreadEvery, func() { l.spread(ctx) }) })
}

func (l *leaderships) close() {
	l.stop()
	l.wg.Wait()
}

// unfit reports whether this node must take over nothing.
func (n *Node) unfit() bool { return n.leaving.Load() || n.diskStuck() }

// candidates returns all replicas of this node.
func (l *leaderships) candidates() []candidate {
	all := []candidate{l.system}
	for _, r := range l.data {
		all = append(all, r)
	}
	return all
}

// leads returns who leads the data shards, as this node knows it.
func (l *leaderships) leads() []placement.Lead {
	leads := make([]placement.Lead, 0, len(l.data))
	for id, r := range l.data {
		if node := l.leader(r); node != 0 {
			leads = append(leads, placement.Lead{Shard: id, Node: node})
		}
	}
	slices.SortFunc(leads, func(a, b placement.Lead) int { return int(a.Shard) - int(b.Shard) })
	return leads
}

// spread hands over one leadership if this node has too many.
func (l *leaderships) spread(ctx context.Context) {
	leads := l.leads()
	if len(leads) < len(l.data) {
		return // somebody is being elected
	}
	// Whether a node is fit is asked only of the one that would get the leadership.
	fit := slices.DeleteFunc(slices.Clone(l.nodes), l.resting.rests)
	for {
		h, ok := placement.NextHandover(l.self, leads, fit)
		if !ok {
			return
		}
		if r := l.data[h.Shard]; r.Steady(l.replicaOf(h.Shard, h.To)) && l.caughtUp(ctx, h.To, r) {
			l.offer(ctx, l.data[h.Shard], h.To)
			return
		}
		fit = slices.DeleteFunc(fit, func(n uint64) bool { return n == h.To })
	}
}

// caughtUp reports whether a node is there and its replica of a shard can lead without
// delay: whether it follows over Raft's own links, and answers calls.
func (l *leaderships) caughtUp(ctx context.Context, node uint64, r *raft.Replica) bool {
	mine := r.Applied()
	match, ok := r.Follows(l.replicaOf(r.ShardID(), node))
	if !ok || match+maxHandoverLag < mine {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, appliedElections*l.election)
	defer cancel()
	index, err := l.applied(ctx, node, r.ShardID())
	return err == nil && index+maxHandoverLag >= mine
}

// offer has a replica hand its leadership to a node, waits for a moment until it has
// gone, and reports whether it has.
func (l *leaderships) offer(ctx context.Context, r *raft.Replica, node uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, handoverElections*l.election)
	defer cancel()
	err := r.HandOver(ctx, l.replicaOf(r.ShardID(), node), func(ctx context.Context) (uint64, error) {
		return l.applied(ctx, node, r.ShardID())
	})
	l.resting.offered(node, err == nil)
	if err != nil {
		l.log.Debug("leadership was not handed over", slog.Uint64("shard", r.ShardID()), slog.Any("error", err))
	}
	return err == nil
}

// drain hands over all that this node leads, handoversAtOnce shards at a time: more of them
// slow each other down while the clients of each wait. The system shard comes last, when
// the others are served again: while it moves, they can't get numbers.
func (l *leaderships) drain(ctx context.Context) {
	var mu sync.Mutex
	var left []uint64 // protected by mu
	handOver := func(r *raft.Replica, to []uint64) {
		if !l.handOver(ctx, r, to) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, r.ShardID())
		}
	}
	leads := l.leads()
	count := make(map[uint64]int)
	for _, lead := range leads {
		count[lead.Node]++
	}
	var under errgroup.Group
	under.SetLimit(handoversAtOnce)
	for _, lead := range leads {
		if lead.Node == l.self {
			to := l.others(count)
			under.Go(func() error {
				handOver(l.data[lead.Shard], to)
				return nil // told below
			})
		}
	}
	_ = under.Wait()
	if l.leader(l.system) == l.self {
		handOver(l.system, l.others(count))
	}
	if len(left) > 0 && len(l.nodes) > 1 {
		l.log.Warn("leaderships were not handed over; others are elected when this node is missed", slog.Any("shards", left))
	}
}

// leader returns the node that leads a shard, as far as this one knows, 0 if none.
func (l *leaderships) leader(r *raft.Replica) uint64 {
	return l.nodeOf(r.ShardID(), r.Leader().ReplicaID)
}

// others returns the other nodes, the one that leads the fewest first, and counts one more
// for that.
func (l *leaderships) others(count map[uint64]int) []uint64 {
	others := slices.DeleteFunc(slices.Clone(l.nodes), func(n uint64) bool { return n == l.self })
	slices.SortStableFunc(others, func(a, b uint64) int { return count[a] - count[b] })
	if len(others) > 0 {
		count[others[0]]++
	}
	return others
}

// handOver hands one leadership to the first of some nodes that can take it.
func (l *leaderships) handOver(ctx context.Context, r *raft.Replica, to []uint64) bool {
	for range handoverAttempts {
		slices.SortStableFunc(to, func(a, b uint64) int { return rank(l.resting.rests(a)) - rank(l.resting.rests(b)) })
		for _, node := range to {
			if ctx.Err() != nil {
				return false
			}
			if l.caughtUp(ctx, node, r) && l.offer(ctx, r, node) {
				return true
			}
			// Who leads by now may not serve yet, but must not be asked to hand over again.
			if by := l.leader(r); by != 0 && by != l.self {
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

// move has a node lead the system shard, and the data shards that this node leads.
func (l *leaderships) move(ctx context.Context, node uint64) error {
	for _, lead := range l.leads() {
		if lead.Node == l.self && l.caughtUp(ctx, node, l.data[lead.Shard]) {
			l.offer(ctx, l.data[lead.Shard], node)
		}
	}
	if !l.offer(ctx, l.system, node) {
		return api.ErrNotMoved
	}
	return nil
}
