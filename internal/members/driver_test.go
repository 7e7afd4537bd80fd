package members

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// group is a shard with two replicas, of which the second is to vote. Its steps are noted.
type group struct {
	Group
	have  raft.Members
	match uint64
	steps []string
}

func (g *group) ShardID() uint64                               { return 2 }
func (g *group) ReplicaID() uint64                             { return 1 }
func (g *group) Serving() uint64                               { return 1 }
func (g *group) Applied() uint64                               { return 80 }
func (g *group) Follows(uint64) (match uint64, ok bool)        { return g.match, true }
func (g *group) Members(context.Context) (raft.Members, error) { return g.have, nil }

func (g *group) CutLog(context.Context) error {
	g.steps = append(g.steps, "cut")
	return nil
}

func (g *group) Promote(context.Context, uint64, string, uint64) error {
	g.steps = append(g.steps, "promote")
	return nil
}

// record is what the system shard says.
type record struct{ Record }

func (record) State() *system.State {
	return &system.State{
		Cluster: system.ClusterRecord{Version: system.Version, Members: 1},
		Nodes:   map[uint64]system.NodeRecord{11: {ID: 11, Instance: "a"}, 12: {ID: 12, Instance: "b"}},
		Shards:  map[uint64]system.ShardRecord{2: {ID: 2, Replicas: map[uint64]uint64{1: 11, 2: 12}}},
	}
}

// A replica that has nothing yet follows a leader of a short log closely. It has no vote for that: the snapshot with which it begins is
// sent by a leader that has cut its log, which one that has just been elected did not do.
func TestWhoHasNothingDoesNotVote(t *testing.T) {
	for _, tc := range []struct {
		name           string
		match, applied uint64
		want           string
	}{
		{"has nothing", 0, 0, "cut"},
		{"acknowledged by another that had its place", 75, 0, "cut"},
		{"has it, and has not told the leader", 0, 80, "cut"},
		{"has begun", 70, 75, "promote"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &group{have: raft.Members{Voters: hosts(1), NonVoting: hosts(2)}, match: tc.match}
				d := Start(Config{
					Record: record{}, Groups: func() []Group { return []Group{g} },
					Host:    func(uint64, uint64) string { return "host" },
					Applied: func(context.Context, uint64, uint64) (uint64, error) { return tc.applied, nil },
					Log:     slog.New(slog.DiscardHandler),
				})
				time.Sleep(interval + interval/2)
				d.Close()
				if !slices.Equal(g.steps, []string{tc.want}) {
					t.Errorf("steps %q, want %q", g.steps, tc.want)
				}
			})
		})
	}
}

// leaving is what the system shard says while its leader removes a node that joined and has been added to no shard yet.
type leaving struct {
	record

	gone []uint64
}

func (r *leaving) State() *system.State {
	s := r.record.State()
	s.System = system.ShardRecord{ID: placement.SystemShard, Replicas: map[uint64]uint64{1: 11, 2: 12}}
	s.Nodes[12] = system.NodeRecord{ID: 12, Instance: "b", Leaving: true}
	return s
}

func (r *leaving) MemberGone(_ context.Context, node uint64) error {
	r.gone = append(r.gone, node)
	return nil
}

// letGo is a shard that this node leads or not.
type letGo struct {
	group

	id, term uint64
}

func (g *letGo) ShardID() uint64 { return g.id }
func (g *letGo) Serving() uint64 { return g.term }

// A leader that has not heard of it adds a replica that is to be removed: nothing would remove it later. So the record forgets a node
// when no shard can have a replica there any more, not when none has.
func TestWhoWasNeverAddedIsRemoved(t *testing.T) {
	for _, tc := range []struct {
		name    string
		removed bool
		gone    int
	}{
		{"a data shard can still add it", false, 0},
		{"no data shard can", true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &leaving{}
				gone := map[uint64]struct{}{2: {}}
				data := &letGo{group: group{have: raft.Members{Voters: hosts(1)}}, id: 2}
				if tc.removed {
					data.have.Removed = gone
				}
				sys := &letGo{group: group{have: raft.Members{Voters: hosts(1), Removed: gone}}, id: placement.SystemShard, term: 1}
				d := Start(Config{
					Record: r, Groups: func() []Group { return []Group{sys, data} },
					Host: func(uint64, uint64) string { return "host" },
					Log:  slog.New(slog.DiscardHandler),
				})
				time.Sleep(interval + interval/2)
				d.Close()
				if len(r.gone) != tc.gone {
					t.Errorf("the record forgot %v", r.gone)
				}
			})
		})
	}
}
