package members

import (
	"slices"
	"testing"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// hosts names the replicas of a list.
func hosts(ids ...uint64) map[uint64]string {
	m := make(map[uint64]string)
	for _, id := range ids {
		m[id] = "host"
	}
	return m
}

func TestNextStep(t *testing.T) {
	voter, learner, leaving := want{votes: true}, want{}, want{votes: true, leaving: true}
	three := map[uint64]want{1: voter, 2: voter, 3: voter}
	with := func(changed map[uint64]want) map[uint64]want {
		all := map[uint64]want{}
		for id, w := range three {
			all[id] = w
		}
		for id, w := range changed {
			all[id] = w
		}
		return all
	}
	for _, tc := range []struct {
		name   string
		wanted map[uint64]want
		have   raft.Members
		dead   []uint64
		step   step
		done   bool
	}{
		{name: "nothing", wanted: three, have: raft.Members{Voters: hosts(1, 2, 3)}, done: true},
		{
			name: "one that joined is added", wanted: with(map[uint64]want{4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3)}, dead: []uint64{4}, step: step{add, 4},
		},
		{
			name: "it votes when it has caught up", wanted: with(map[uint64]want{4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, step: step{promote, 4},
		},
		{
			name: "not before", wanted: with(map[uint64]want{4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{4},
		},
		{
			name: "not where a majority of four would be missing", wanted: with(map[uint64]want{4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{2, 3},
		},
		{
			name: "one of three may be down meanwhile", wanted: with(map[uint64]want{4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{3}, step: step{promote, 4},
		},
		{
			name: "a learner goes on following", wanted: with(map[uint64]want{4: learner}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, done: true,
		},
		{
			name: "a dead one goes", wanted: with(map[uint64]want{3: leaving}),
			have: raft.Members{Voters: hosts(1, 2, 3)}, dead: []uint64{3}, step: step{remove, 3},
		},
		{
			name: "a live one stays where the others are no majority", wanted: with(map[uint64]want{3: leaving}),
			have: raft.Members{Voters: hosts(1, 2, 3)}, dead: []uint64{2},
		},
		{
			name: "who is leaving counts as dead", wanted: with(map[uint64]want{2: leaving, 3: leaving}),
			have: raft.Members{Voters: hosts(1, 2, 3)},
		},
		{
			name: "the leader does not remove itself", wanted: with(map[uint64]want{1: leaving}),
			have: raft.Members{Voters: hosts(1, 2, 3)},
		},
		{
			name: "a learner goes without a majority", wanted: with(map[uint64]want{4: {leaving: true}}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{2, 3, 4}, step: step{remove, 4},
		},
		{
			name: "who was removed is not added again", wanted: three,
			have: raft.Members{Voters: hosts(1, 2), Removed: map[uint64]struct{}{3: {}}}, done: true,
		},
		{
			name: "who is gone is gone", wanted: with(map[uint64]want{3: leaving}),
			have: raft.Members{Voters: hosts(1, 2), Removed: map[uint64]struct{}{3: {}}}, done: true,
		},
		{
			name: "who was never added goes, too", wanted: with(map[uint64]want{4: {votes: true, leaving: true}}),
			have: raft.Members{Voters: hosts(1, 2, 3)}, dead: []uint64{4}, step: step{remove, 4},
		},
		{
			name: "one alone grows", wanted: map[uint64]want{1: voter, 2: voter},
			have: raft.Members{Voters: hosts(1), NonVoting: hosts(2)}, step: step{promote, 2},
		},
		{
			name: "others come to vote where all that do are leaving", wanted: map[uint64]want{1: leaving, 2: voter, 3: voter},
			have: raft.Members{Voters: hosts(1), NonVoting: hosts(2, 3)}, step: step{promote, 2},
		},
		{
			name: "who is leaving votes meanwhile", wanted: with(map[uint64]want{1: leaving, 2: leaving, 4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{3}, step: step{promote, 4},
		},
		{
			name: "who is leaving and dead does not", wanted: with(map[uint64]want{2: leaving, 4: voter}),
			have: raft.Members{Voters: hosts(1, 2, 3), NonVoting: hosts(4)}, dead: []uint64{2, 3},
		},
		{
			name: "of two one goes", wanted: map[uint64]want{1: voter, 2: leaving},
			have: raft.Members{Voters: hosts(1, 2)}, step: step{remove, 2},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plan{wanted: tc.wanted, have: tc.have, self: 1, live: func(id uint64) bool { return !slices.Contains(tc.dead, id) }}
			if s, done := p.next(); s != tc.step || done != tc.done {
				t.Errorf("%v %d, done %v; want %v %d, done %v", s.do, s.replica, done, tc.step.do, tc.step.replica, tc.done)
			}
		})
	}
}
