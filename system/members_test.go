package system

import (
	"errors"
	"slices"
	"testing"

	"github.com/latchkey-db/latchkey/placement"
)

// change applies a change of members and returns what it says.
func (s *system) change(p memberCommand) error {
	s.t.Helper()
	reason, _ := s.result(kindMembers, p).(string)
	for _, known := range memberReasons {
		if reason == known.Error() {
			return known
		}
	}
	if reason != "" {
		s.t.Fatalf("the reason %q is not known", reason)
	}
	return nil
}

// three makes a cluster of three nodes.
func three(t *testing.T) *system {
	t.Helper()
	s := newSystem(t)
	p := cluster(10)
	p.Nodes = nil
	for id, name := range []string{"a", "b", "c"} {
		p.Nodes = append(p.Nodes, NodeRecord{ID: uint64(id) + 7, Name: name, PeerURLs: []string{"http://" + name + ":1"}, Instance: name, Version: Version})
	}
	p.Shards = append(p.Shards, ShardRecord{ID: placement.FirstDataShard + 1})
	for i := range p.Shards {
		p.Shards[i].Replicas, p.Shards[i].NextReplica = map[uint64]uint64{1: 7, 2: 8, 3: 9}, 4
	}
	s.apply(kindBootstrap, p)
	return s
}

// A member is added, joins with one data directory, is promoted, updated and removed; what does not fit
// changes nothing, and nobody comes back.
func TestMembers(t *testing.T) {
	s := three(t)
	first := s.m.State().SortedNodes()
	urls := []string{"http://d:1"}
	for _, tc := range []struct {
		name string
		p    memberCommand
		want error
	}{
		{"add with the URL of another", memberCommand{Op: opAdd, ID: 40, PeerURLs: first[0].PeerURLs}, ErrPeerURLExists},
		{"add with the id of another", memberCommand{Op: opAdd, ID: first[0].ID, PeerURLs: urls}, ErrMemberExists},
		{"add by an old view", memberCommand{Op: opAdd, ID: 40, PeerURLs: urls, Judged: 99}, ErrMembersChanged},
		{"add a learner", memberCommand{Op: opAdd, ID: 40, PeerURLs: urls, Learner: true}, nil},
		{"add another learner", memberCommand{Op: opAdd, ID: 41, PeerURLs: []string{"http://e:1"}, Learner: true}, ErrTooManyLearners},
		{"join as nobody", memberCommand{Op: opJoin, PeerURLs: []string{"http://f:1"}, Instance: "d", Version: Version}, ErrNotMember},
		{"join with an old program", memberCommand{Op: opJoin, PeerURLs: urls, Instance: "d", Version: 1}, ErrOldProgram},
		{"join", memberCommand{Op: opJoin, PeerURLs: urls, Instance: "d", Version: Version}, nil},
		{"join again", memberCommand{Op: opJoin, PeerURLs: urls, Instance: "d", Version: Version}, nil},
		{"join with another directory", memberCommand{Op: opJoin, PeerURLs: urls, Instance: "e", Version: Version}, ErrInstance},
		{"promote", memberCommand{Op: opPromote, ID: 40}, nil},
		{"promote again", memberCommand{Op: opPromote, ID: 40}, ErrNotLearner},
		{"promote nobody", memberCommand{Op: opPromote, ID: 42}, ErrNotMember},
		{"update to the URL of another", memberCommand{Op: opUpdate, ID: 40, PeerURLs: first[1].PeerURLs}, ErrPeerURLExists},
		{"update", memberCommand{Op: opUpdate, ID: 40, PeerURLs: []string{"http://d:2"}}, nil},
		{"remove", memberCommand{Op: opRemove, ID: 40}, nil},
		{"gone", memberCommand{Op: opGone, ID: 40}, nil},
		{"remove again", memberCommand{Op: opRemove, ID: 40}, ErrNotMember},
		{"come back", memberCommand{Op: opAdd, ID: 40, PeerURLs: urls}, ErrMemberExists},
		{"add again, as another", memberCommand{Op: opAdd, ID: 43, PeerURLs: urls}, nil},
		{"remove one that never started", memberCommand{Op: opRemove, ID: 43}, nil},
	} {
		before := s.m.State()
		if err := s.change(tc.p); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		} else if err != nil && s.m.State() != before {
			t.Errorf("%s: refused, and the state changed", tc.name)
		}
		s.reloaded()
	}
	now := s.m.State()
	if len(now.Nodes) != 3 || len(now.Removed) != 2 || len(now.System.Replicas) != 3 || now.System.NextReplica != 5 {
		t.Errorf("%d nodes, %d removed, system shard %+v", len(now.Nodes), len(now.Removed), now.System)
	}
	for _, h := range now.Shards {
		if len(h.Replicas) != 3 || h.NextReplica != 5 {
			t.Errorf("shard %+v", h)
		}
	}
}

// First members that never started keep the others from changing the members, until they are removed.
func TestMemberThatNeverStarted(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, bootstrap{
		Cluster: ClusterRecord{ID: 1, Version: firstVersion}, Nodes: []NodeRecord{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}, {ID: 5}},
		Shards: []ShardRecord{{ID: placement.SystemShard, Replicas: map[uint64]uint64{1: 1, 2: 2, 3: 3, 4: 4, 5: 5}, NextReplica: 6}},
	})
	removes := func(want ...uint64) {
		t.Helper()
		for id := range s.m.State().Nodes {
			if got := s.m.State().Removes(id); got != slices.Contains(want, id) {
				t.Errorf("%d can be removed: %v", id, got)
			}
		}
	}
	for id := uint64(1); id <= 2; id++ {
		if err := s.announced(id, Version); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.announced(3, changesMembers-1); err != nil {
		t.Fatal(err)
	}
	removes() // 3 does not know how
	if err := s.announced(3, Version); err != nil {
		t.Fatal(err)
	}
	removes(4, 5)
	for i, id := range []uint64{4, 5} {
		if err := s.change(memberCommand{Op: opRemove, ID: id}); err != nil {
			t.Fatal(err)
		}
		if now := s.m.State(); now.ChangesMembers() != (i == 1) || !now.Nodes[id].Leaving {
			t.Errorf("with %d being removed: version %d, %+v", id, now.Cluster.Version, now.Nodes[id])
		}
		s.reloaded()
	}
	removes(1, 2, 3, 4, 5)
}

// What a node says of itself changes neither where others reach it nor whether it votes.
func TestAnnouncementKeepsTheMember(t *testing.T) {
	s := three(t)
	n := s.m.State().SortedNodes()[0]
	if err := s.change(memberCommand{Op: opUpdate, ID: n.ID, PeerURLs: []string{"http://new:1"}}); err != nil {
		t.Fatal(err)
	}
	old := n
	old.Name, old.Learner = "renamed", true
	s.apply(kindNode, old)
	if got := s.m.State().Nodes[n.ID]; got.Name != "renamed" || got.Learner || !slices.Equal(got.PeerURLs, []string{"http://new:1"}) {
		t.Errorf("%+v", got)
	}
	s.reloaded()
}
