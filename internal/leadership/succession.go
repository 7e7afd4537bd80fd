package leadership

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// settleFactor is how many election timeouts a node that was given up is left alone, silent
// as it is. Elections may take longer than turns, as where disks are slow, and who is asked
// to stand disturbs those who do.
const settleFactor = 4

// Succession finds out that a node is gone sooner than each shard does by itself, and
// has this node stand for election for what the other led. Raft waits for each shard
// until a random timeout has passed, and the last of many shards waits long. Here
//
//   - a node whose process is no more (peer.Config.Gone) is not waited for at all,
//   - a node that leads and has been silent for an election timeout is not waited for any
//     longer, if so many miss it that they are a majority, and
//   - a node that lost one shard because it was silent is not waited for in the others:
//     a majority has missed it for an election timeout already.
//
// Status for election is safe at any time; a mistake costs a change of leader. Not all
// may stand at once, since each would vote for itself: nodes take turns, in an order
// that differs from shard to shard and spreads the leaders.
type Succession struct {
	self uint64
	// members are the cluster's.
	members Members
	// heartbeat is Raft's heartbeat, and election the shortest timeout of an election.
	heartbeat, election time.Duration
	// unheard counts, for each other node, this node's own heartbeats since something was
	// heard of it, as *atomic.Int64. A process that stood still counts none.
	unheard sync.Map
	// ask asks a node whether it misses another.
	ask func(ctx context.Context, node, missing uint64) (bool, error)

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	// replicas are those of this node; none before start and after close.
	replicas []Candidate
	// gaveUp is when a node was last given up.
	gaveUp map[uint64]time.Time
	// last is the replica that led each shard last. Who stands for election, and is not
	// elected, knows no leader from then on.
	last map[uint64]uint64
}

// Candidate is a replica of this node, *raft.Replica.
type Candidate interface {
	ShardID() uint64
	Leader() raft.Leader
	LeaderUntil() (raft.Leader, context.Context)
	Campaign(lost uint64)
}

// Members are the members of a cluster as a node knows them now.
type Members interface {
	// Voters returns the nodes that vote and stay, in rising order.
	Voters() []uint64
	// NodeOf and ReplicaOf map the replicas of a shard to nodes, 0 for none.
	NodeOf(shardID, replicaID uint64) uint64
	ReplicaOf(shardID, node uint64) uint64
}

// NewSuccession returns the succession of the node self. ask asks a node whether it misses
// another, heartbeat is Raft's heartbeat, and election the shortest timeout of an election.
func NewSuccession(self uint64, members Members, heartbeat, election time.Duration,
	ask func(ctx context.Context, node, missing uint64) (bool, error),
) *Succession {
	return &Succession{
		self: self, members: members, heartbeat: heartbeat, election: election, ask: ask, stop: func() {},
		gaveUp: make(map[uint64]time.Time), last: make(map[uint64]uint64),
	}
}

// heartbeats returns the count of a node, nil if there is none yet.
func (s *Succession) heartbeats(node uint64) *atomic.Int64 {
	n, _ := s.unheard.Load(node)
	count, _ := n.(*atomic.Int64)
	return count
}

// Heard notes that Raft has heard of a node.
func (s *Succession) Heard(node uint64) {
	if n := s.heartbeats(node); n != nil && n.Load() != 0 {
		n.Store(0)
	}
}

// Start watches who leads.
func (s *Succession) Start(replicas []Candidate) {
	s.mu.Lock()
	s.replicas = replicas
	s.mu.Unlock()
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(func() { every(ctx, s.heartbeat, func() { s.count(ctx) }) })
	for _, r := range replicas {
		s.wg.Go(func() { s.follow(ctx, r) })
	}
}

// Close ends that: this node stands for election no more but by Raft's own timeouts.
func (s *Succession) Close() {
	s.stop()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = nil
}

// count counts one heartbeat, and asks the others about leaders that this node misses.
func (s *Succession) count(ctx context.Context) {
	for _, node := range s.members.Voters() {
		if node == s.self {
			continue
		}
		n := s.heartbeats(node)
		if n == nil {
			n = new(atomic.Int64)
			s.unheard.Store(node, n)
		}
		n.Add(1)
		if s.Misses(node) && !s.givenUp(node) {
			s.wg.Go(func() { s.inquire(ctx, node) })
		}
	}
}

// Misses reports whether nothing has been heard for an election timeout of a node that
// leads something, as far as this one knows. One that leads nothing may well be silent.
func (s *Succession) Misses(node uint64) bool {
	if !s.silent(node, s.election) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.replicas, s.ledByLocked(node))
}

// givenUp reports whether a node was given up not long ago.
func (s *Succession) givenUp(node uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.givenUpLocked(node, settleFactor*s.election)
}

// givenUpLocked reports whether a node was given up within a time. s.mu must be held.
func (s *Succession) givenUpLocked(node uint64, within time.Duration) bool {
	at, ok := s.gaveUp[node]
	return ok && time.Since(at) < within
}

// ledByLocked returns what reports whether a node led a shard last, and no other is
// known to lead it now. s.mu must be held where it is called.
func (s *Succession) ledByLocked(node uint64) func(Candidate) bool {
	return func(r Candidate) bool {
		leader := cmp.Or(r.Leader().ReplicaID, s.last[r.ShardID()])
		return leader != 0 && s.members.NodeOf(r.ShardID(), leader) == node
	}
}

// inquire gives a node up if those who miss it are a majority of all, this one among them.
// The others have an election timeout to answer, since they may be far away; count asks
// again meanwhile.
func (s *Succession) inquire(ctx context.Context, node uint64) {
	ctx, cancel := context.WithTimeout(ctx, s.election)
	defer cancel()
	voters := s.members.Voters()
	others := slices.DeleteFunc(slices.Clone(voters), func(n uint64) bool { return n == s.self || n == node })
	answers := make(chan bool, len(others))
	for _, n := range others {
		go func() {
			missed, err := s.ask(ctx, n, node)
			answers <- missed && err == nil
		}()
	}
	missing := 1
	for range others {
		if <-answers {
			missing++
		}
		if missing > len(voters)/2 {
			if s.Misses(node) { // still
				s.Lost(node)
			}
			return
		}
	}
}

// silent reports whether nothing has been heard of a node for a time.
func (s *Succession) silent(node uint64, within time.Duration) bool {
	n := s.heartbeats(node)
	return n != nil && time.Duration(n.Load())*s.heartbeat >= within
}

// follow keeps who leads a shard, and gives a node up that lost it and was silent for half an
// election timeout: a majority has missed it.
func (s *Succession) follow(ctx context.Context, r Candidate) {
	for ctx.Err() == nil {
		known, over := r.LeaderUntil()
		if known.ReplicaID != 0 {
			s.mu.Lock()
			last := s.last[r.ShardID()]
			s.last[r.ShardID()] = known.ReplicaID
			s.mu.Unlock()
			if node := s.members.NodeOf(r.ShardID(), last); last != known.ReplicaID && s.silent(node, s.election/2) {
				s.Lost(node)
			}
		}
		select {
		case <-over.Done():
		case <-ctx.Done():
		}
	}
}

// Lost has this node stand for election, when it is its turn, for all that a node led. If
// none was elected, since the log of the only one that stood in time was behind, each
// stands once more.
func (s *Succession) Lost(node uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// One loss shows in many ways. What the first has begun is left alone.
	if s.givenUpLocked(node, s.election) {
		return
	}
	s.gaveUp[node] = time.Now()
	led := s.ledByLocked(node)
	for _, r := range s.replicas {
		if led(r) {
			known, gone := r.Leader(), s.members.ReplicaOf(r.ShardID(), node)
			for _, wait := range s.turns(r.ShardID(), node) {
				time.AfterFunc(wait, func() { s.campaign(r, gone, known) })
			}
		}
	}
}

// campaign has a replica stand for election if no leader has been heard of since known,
// unless this node does so no more.
func (s *Succession) campaign(r Candidate, gone uint64, known raft.Leader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := r.Leader(); s.replicas != nil && (now.ReplicaID == 0 || now == known) {
		r.Campaign(gone)
	}
}

// turns is how long this node waits before it stands for election in a shard whose leader
// was on the node that is gone, and before it stands once more; none for one that does not vote.
func (s *Succession) turns(shardID, gone uint64) []time.Duration {
	left := slices.DeleteFunc(slices.Clone(s.members.Voters()), func(n uint64) bool { return n == gone })
	at := slices.Index(left, s.self)
	if at < 0 {
		return nil
	}
	n := uint64(len(left))
	place := (uint64(at) + n - shardID%n) % n
	turn := s.election / 5
	return []time.Duration{time.Duration(place) * turn, time.Duration(place+n) * turn}
}
