package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/shard"
)

// succession finds out that a node is gone sooner than each shard does by itself, and
// has this node stand for election for what the other led. Raft waits for each shard
// until a random timeout has passed, and the last of many shards waits long. Here
//
//   - a node whose process is no more (peer.Config.Gone) is not waited for at all, and
//   - a node that lost one shard because it was silent is not waited for in the others:
//     a majority has missed it for an election timeout already.
//
// Standing for election is safe at any time; a mistake costs a change of leader. Not all
// may stand at once, since each would vote for itself: nodes take turns, in an order
// that differs from shard to shard and spreads the leaders.
type succession struct {
	self  uint64
	nodes []datadir.Member
	// beat is Raft's heartbeat, and election the shortest timeout of an election.
	beat, election time.Duration
	// unheard counts, for each other node, this node's own heartbeats since something was
	// heard of it. A process that stood still counts none.
	unheard map[uint64]*atomic.Int64

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	// replicas are those of this node; none before start and after close.
	replicas []candidate
	// missed is when a node was last given up.
	missed map[uint64]time.Time
}

// candidate is a replica of this node, *shard.Replica.
type candidate interface {
	ShardID() uint64
	Leader() shard.Leader
	LeaderUntil() (shard.Leader, context.Context)
	Campaign(lost uint64)
}

func newSuccession(self uint64, nodes []datadir.Member, beat, election time.Duration) *succession {
	s := &succession{
		self: self, nodes: nodes, beat: beat, election: election, stop: func() {},
		unheard: make(map[uint64]*atomic.Int64), missed: make(map[uint64]time.Time),
	}
	for _, m := range nodes {
		s.unheard[m.ID] = new(atomic.Int64)
	}
	return s
}

// heard notes that Raft has heard of a node.
func (s *succession) heard(node uint64) {
	if n := s.unheard[node]; n != nil && n.Load() != 0 {
		n.Store(0)
	}
}

// start watches who leads.
func (s *succession) start(replicas []candidate) {
	s.mu.Lock()
	s.replicas = replicas
	s.mu.Unlock()
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(func() { every(ctx, s.beat, s.count) })
	for _, r := range replicas {
		s.wg.Go(func() { s.follow(ctx, r) })
	}
}

// close ends that: this node stands for election no more but by Raft's own timeouts.
func (s *succession) close() {
	s.stop()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = nil
}

// count counts one heartbeat.
func (s *succession) count() {
	for _, n := range s.unheard {
		n.Add(1)
	}
}

// silent reports whether nothing has been heard of a node for half an election timeout.
func (s *succession) silent(node uint64) bool {
	n := s.unheard[node]
	return n != nil && time.Duration(n.Load())*s.beat >= s.election/2
}

// follow gives a node up that was silent and lost the leadership of a shard.
func (s *succession) follow(ctx context.Context, r candidate) {
	var last uint64 // the node that led last, 0 while none is known
	for ctx.Err() == nil {
		known, over := r.LeaderUntil()
		if node := s.nodeOf(known.ReplicaID); node != 0 {
			if last != 0 && node != last && s.silent(last) {
				s.lost(last)
			}
			last = node
		}
		select {
		case <-over.Done():
		case <-ctx.Done():
		}
	}
}

// nodeOf returns the node of a replica, 0 for none.
func (s *succession) nodeOf(replicaID uint64) uint64 {
	if replicaID == 0 || replicaID > uint64(len(s.nodes)) {
		return 0
	}
	return s.nodes[replicaID-1].ID
}

// lost has this node stand for election, when it is its turn, for all that a node led.
func (s *succession) lost(node uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// One loss shows in many ways. What the first has begun is left alone.
	if at, ok := s.missed[node]; ok && time.Since(at) < s.election {
		return
	}
	s.missed[node] = time.Now()
	gone := replicaOf(s.nodes, node)
	for _, r := range s.replicas {
		if r.Leader().ReplicaID == gone {
			time.AfterFunc(s.turn(r.ShardID(), node), func() { s.campaign(r, gone) })
		}
	}
}

// campaign has a replica stand for election, unless this node does so no more.
func (s *succession) campaign(r candidate, gone uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replicas != nil {
		r.Campaign(gone)
	}
}

// turn is how long this node waits before it stands for election in a shard whose leader
// was on the node that is gone.
func (s *succession) turn(shardID, gone uint64) time.Duration {
	left := slices.DeleteFunc(slices.Clone(s.nodes), func(m datadir.Member) bool { return m.ID == gone })
	n := uint64(len(left))
	place := (replicaOf(left, s.self) - 1 + n - shardID%n) % n
	return time.Duration(place) * s.election / 5
}
