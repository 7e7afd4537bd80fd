package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/shard"
)

// seat is a replica without a shard: tests say who leads.
type seat struct {
	id uint64

	mu      sync.Mutex
	leader  shard.Leader
	ctx     context.Context
	changed context.CancelFunc
	// stood are the moments at which it stood for election.
	stood []time.Time
}

var _ candidate = (*seat)(nil)

func newSeat(id, leader uint64) *seat {
	s := &seat{id: id}
	s.lead(leader)
	return s
}

func (s *seat) lead(replicaID uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		s.changed()
	}
	s.leader = shard.Leader{ReplicaID: replicaID, Term: s.leader.Term + 1}
	s.ctx, s.changed = context.WithCancel(context.Background())
}

func (s *seat) ShardID() uint64 { return s.id }

func (s *seat) Leader() shard.Leader {
	l, _ := s.LeaderUntil()
	return l
}

func (s *seat) LeaderUntil() (shard.Leader, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader, s.ctx
}

func (s *seat) Campaign(lost uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader.ReplicaID == lost {
		s.stood = append(s.stood, time.Now())
	}
}

const (
	testBeat     = 100 * time.Millisecond
	testElection = time.Second
)

// bench is the succession of one of three nodes, 10, 20 and 30, with a seat in each of
// some shards that the first leads.
func bench(t *testing.T, self uint64, shards int) (*succession, []*seat) {
	t.Helper()
	nodes := []datadir.Member{{ID: 10}, {ID: 20}, {ID: 30}}
	s := newSuccession(self, nodes, testBeat, testElection)
	var seats []*seat
	var all []candidate
	for i := range shards {
		c := newSeat(uint64(i), 1)
		seats = append(seats, c)
		all = append(all, c)
	}
	s.start(all)
	return s, seats
}

// A node without a process is not waited for, and those that are left stand for election
// one after the other, each first in a part of the shards.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = 8
		begin := time.Now()
		waits := make([][]time.Duration, shards)
		for _, self := range []uint64{20, 30} {
			s, seats := bench(t, self, shards)
			s.lost(10)
			time.Sleep(testElection)
			s.close()
			for i, c := range seats {
				if len(c.stood) != 1 {
					t.Fatalf("node %d stood %d times in shard %d", self, len(c.stood), i)
				}
				waits[i] = append(waits[i], c.stood[0].Sub(begin))
			}
			begin = time.Now()
		}
		first := 0
		for i, w := range waits {
			if w[0] == 0 {
				first++
			}
			slices.Sort(w)
			if w[0] != 0 || w[1] < testBeat {
				t.Errorf("shard %d: nodes stood after %v", i, w)
			}
		}
		if first != shards/2 {
			t.Errorf("one node is first in %d shards of %d", first, shards)
		}
	})
}

// A node that lost a shard is given up in the others if it was silent; if it has handed
// the shard over, or another took it, it keeps the others.
func TestSilentNodeIsGivenUp(t *testing.T) {
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, seats := bench(t, 20, 4)
				for range 12 {
					time.Sleep(testBeat)
					if !silent {
						s.heard(10)
					}
				}
				seats[0].lead(3)
				time.Sleep(testElection)
				s.close()
				stood := 0
				for _, c := range seats[1:] {
					stood += len(c.stood)
				}
				if want := map[bool]int{true: 3}[silent]; stood != want || len(seats[0].stood) != 0 {
					t.Errorf("this node stood in %d shards, %d times in the one that has a leader", stood, len(seats[0].stood))
				}
			})
		})
	}
}

// Who leads is left alone after close.
func TestSuccessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seats := bench(t, 20, 4)
		s.lost(10)
		s.close()
		time.Sleep(testElection)
		for i, c := range seats {
			if len(c.stood) > 0 && c.stood[0].After(time.Now().Add(-testElection)) {
				t.Errorf("this node stood in shard %d after it had stopped", i)
			}
		}
	})
}
