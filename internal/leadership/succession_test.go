package leadership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// seat is a replica without a shard: tests say who leads.
type seat struct {
	id uint64

	mu      sync.Mutex
	leader  raft.Leader
	ctx     context.Context
	changed context.CancelFunc
	// stood are the moments at which it stood for election.
	stood []time.Time
}

var _ Candidate = (*seat)(nil)

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
	s.leader = raft.Leader{ReplicaID: replicaID, Term: s.leader.Term + 1}
	s.ctx, s.changed = context.WithCancel(context.Background())
}

func (s *seat) ShardID() uint64 { return s.id }

func (s *seat) Leader() raft.Leader {
	l, _ := s.LeaderUntil()
	return l
}

func (s *seat) LeaderUntil() (raft.Leader, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader, s.ctx
}

func (s *seat) Campaign(lost uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader.ReplicaID == lost || s.leader.ReplicaID == 0 {
		s.stood = append(s.stood, time.Now())
	}
}

const (
	testBeat     = 100 * time.Millisecond
	testElection = time.Second
)

// threeNodes are nodes whose replicas have their places, from 1, as ids.
type threeNodes [3]uint64

func (n threeNodes) Voters() []uint64 { return n[:] }

func (n threeNodes) NodeOf(_, replicaID uint64) uint64 {
	if replicaID == 0 || replicaID > 3 {
		return 0
	}
	return n[replicaID-1]
}

func (n threeNodes) ReplicaOf(_, node uint64) uint64 { return uint64(slices.Index(n[:], node) + 1) }

// bench is the succession of one of three nodes, 10, 20 and 30, with a seat in each of
// some shards that the first leads. ask answers for the others.
func bench(t *testing.T, self uint64, shards int, ask func(ctx context.Context, node, missing uint64) (bool, error)) (*Succession, []*seat) {
	t.Helper()
	s := NewSuccession(self, threeNodes{10, 20, 30}, testBeat, testElection, ask)
	var seats []*seat
	var all []Candidate
	for i := range shards {
		c := newSeat(uint64(i), 1)
		seats = append(seats, c)
		all = append(all, c)
	}
	s.Start(all)
	return s, seats
}

// missesNobody is the answer of nodes that hear of all others.
func missesNobody(context.Context, uint64, uint64) (bool, error) { return false, nil }

// A node without a process is not waited for, and those that are left stand for election
// one after the other, each first in a part of the shards.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = 8
		begin := time.Now()
		waits := make([][]time.Duration, shards)
		var again []time.Duration
		for _, self := range []uint64{20, 30} {
			s, seats := bench(t, self, shards, missesNobody)
			s.Lost(10)
			time.Sleep(testElection - testBeat)
			s.Close()
			for i, c := range seats {
				if len(c.stood) != 2 {
					t.Fatalf("node %d stood %d times in shard %d", self, len(c.stood), i)
				}
				waits[i] = append(waits[i], c.stood[0].Sub(begin))
				again = append(again, c.stood[1].Sub(begin))
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
		if last := slices.MaxFunc(waits, func(v, w []time.Duration) int { return int(v[1] - w[1]) })[1]; slices.Min(again) <= last {
			t.Errorf("nodes stood again after %v, before all had stood, after %v", slices.Min(again), last)
		}
	})
}

// A node that lost a shard is given up in the others if it was silent; if it has handed
// the shard over, or another took it, it keeps the others.
func TestSilentNodeIsGivenUp(t *testing.T) {
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, seats := bench(t, 20, 4, missesNobody)
				for range 12 {
					time.Sleep(testBeat)
					if !silent {
						s.Heard(10)
					}
				}
				seats[0].lead(3)
				time.Sleep(testElection)
				s.Close()
				stood := 0
				for _, c := range seats[1:] {
					stood += len(c.stood)
				}
				if want := map[bool]int{true: 6}[silent]; stood != want || len(seats[0].stood) != 0 {
					t.Errorf("this node stood in %d shards, %d times in the one that has a leader", stood, len(seats[0].stood))
				}
			})
		})
	}
}

// A leader that has been silent for an election timeout is given up, in all that it led, if
// a majority misses it; one that another node hears of is not, nor one of which the other
// can't be asked.
func TestMissedLeaderIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		missed bool
		err    error
		led    []uint64 // who leads each shard when the silence is noticed
		stood  []bool
	}{
		{name: "missed by both", missed: true, led: []uint64{1, 1}, stood: []bool{true, true}},
		{name: "missed here alone", led: []uint64{1, 1}, stood: []bool{false, false}},
		{name: "nobody answers", missed: true, err: errors.New("lost"), led: []uint64{1, 1}, stood: []bool{false, false}},
		// A replica that stood by itself, and was not elected, knows no leader.
		{name: "an election failed", missed: true, led: []uint64{0, 1}, stood: []bool{true, true}},
		{name: "another leads", missed: true, led: []uint64{3, 1}, stood: []bool{false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := make(chan [2]uint64, 100) // whom, and about whom
				s, seats := bench(t, 20, len(c.led), func(_ context.Context, node, missing uint64) (bool, error) {
					asked <- [2]uint64{node, missing}
					return c.missed, c.err
				})
				wait := func(beats int) {
					for range beats {
						time.Sleep(testBeat)
						s.Heard(30)
					}
				}
				time.Sleep(testBeat / 2)
				wait(1)
				for i, l := range c.led {
					if l != 1 {
						seats[i].lead(l)
					}
				}
				wait(8)
				if len(asked) > 0 {
					t.Fatalf("others were asked before an election timeout: %v", <-asked)
				}
				wait(7)
				s.Close()
				if got := <-asked; got != [2]uint64{30, 10} {
					t.Errorf("asked %d whether it misses %d", got[0], got[1])
				}
				for i, seat := range seats {
					if len(seat.stood) > 0 != c.stood[i] {
						t.Errorf("shard %d: stood %d times", i, len(seat.stood))
					}
				}
			})
		})
	}
}

// Others may be far away: their word counts if it comes within an election timeout, and
// the leader has not been heard of meanwhile.
func TestFarNodesAreAsked(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("back=", back), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, seats := bench(t, 20, 1, func(ctx context.Context, _, _ uint64) (bool, error) {
					select {
					case <-time.After(testElection * 9 / 10):
						return true, nil
					case <-ctx.Done():
						return false, context.Cause(ctx)
					}
				})
				time.Sleep(testElection + 5*testBeat)
				if back {
					s.Heard(10)
				}
				time.Sleep(testElection)
				s.Close()
				if (len(seats[0].stood) > 0) == back {
					t.Errorf("this node stood %d times", len(seats[0].stood))
				}
			})
		})
	}
}

// A node is missed that leads, as far as one knows, and was silent for a whole election
// timeout; whoever leads nothing may be silent. It stays missed when it has been given up,
// for others who ask.
func TestMisses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seats := bench(t, 20, 1, missesNobody)
		defer s.Close()
		time.Sleep(testElection - testBeat/2)
		if s.Misses(10) {
			t.Error("a leader was missed before an election timeout")
		}
		time.Sleep(testBeat)
		if !s.Misses(10) || s.Misses(30) || s.Misses(20) {
			t.Errorf("missed: the leader %v, a follower %v, itself %v", s.Misses(10), s.Misses(30), s.Misses(20))
		}
		s.Lost(10)
		if !s.Misses(10) {
			t.Error("a leader was not missed any more when it had been given up")
		}
		seats[0].lead(0)
		if !s.Misses(10) {
			t.Error("a leader was not missed any more when an election had begun")
		}
		seats[0].lead(3)
		if s.Misses(10) {
			t.Error("a node was missed that another had followed")
		}
	})
}

// Elections that take long are not disturbed: a node that stays silent is not given up over
// and over.
func TestSlowElectionsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seats := bench(t, 20, 1, func(context.Context, uint64, uint64) (bool, error) { return true, nil })
		time.Sleep(testElection + testBeat)
		seats[0].lead(0)
		time.Sleep((settleFactor - 1) * testElection)
		s.Close()
		if len(seats[0].stood) != 2 {
			t.Errorf("this node stood %d times while an election was under way", len(seats[0].stood))
		}
	})
}

// A leader that comes back while this node waits for its turn keeps what it leads, and so
// does one that was elected meanwhile.
func TestOnlyTheGoneAreStoodAgainst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seats := bench(t, 20, 2, missesNobody)
		s.Lost(10)
		time.Sleep(testBeat / 2)
		for _, c := range seats {
			c.mu.Lock()
			c.stood = nil
			c.mu.Unlock()
			c.lead(1)
		}
		time.Sleep(testElection)
		s.Close()
		for i, c := range seats {
			if len(c.stood) > 0 {
				t.Errorf("this node stood in shard %d against a leader of a later term", i)
			}
		}
	})
}

// Who leads is left alone after close.
func TestSuccessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seats := bench(t, 20, 4, missesNobody)
		s.Lost(10)
		s.Close()
		time.Sleep(testElection)
		for i, c := range seats {
			if len(c.stood) > 0 && c.stood[0].After(time.Now().Add(-testElection)) {
				t.Errorf("this node stood in shard %d after it had stopped", i)
			}
		}
	})
}
