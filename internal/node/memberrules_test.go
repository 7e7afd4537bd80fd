package node

import (
	"errors"
	"testing"

	"github.com/latchkey-db/latchkey/system"
)

// Changes of members are judged as etcd judges them.
func TestMemberRules(t *testing.T) {
	// Members are letters, in the order of their ids. Capitals are this node, b and c others that have been reached for long, n one
	// that has just been, d one that is not reached, u one that never started, s one that is behind, x one that leaves, and l a
	// learner.
	may := func(members string, strict bool, change func(r *memberRules) error) error {
		state := &system.State{Nodes: make(map[uint64]system.NodeRecord)}
		for i, what := range members {
			n := system.NodeRecord{ID: uint64(i + 1), Name: "name", Learner: what == 'l', Leaving: what == 'x'}
			if what == 'u' {
				n.Name = ""
			}
			state.Nodes[n.ID] = n
		}
		return change(&memberRules{
			state: state, strict: strict,
			reached: func(id uint64, long bool) bool {
				what := members[id-1]
				return what != 'd' && what != 'u' && (!long || what != 'n')
			},
			caughtUp: func(id uint64) bool { return members[id-1] != 's' && members[id-1] != 'd' && members[id-1] != 'u' },
		})
	}
	come := func(r *memberRules) error { return r.mayCome(false) }
	learn := func(r *memberRules) error { return r.mayCome(true) }
	vote := (*memberRules).mayVote
	goes := func(id uint64) func(r *memberRules) error {
		return func(r *memberRules) error { return r.mayGo(r.state.Nodes[id]) }
	}
	for _, tc := range []struct {
		what, members string
		change        func(r *memberRules) error
		want, lax     error
	}{
		{"one alone grows", "A", come, nil, nil},
		{"one alone gets a learner", "A", learn, nil, nil},
		{"three grow", "Abc", come, nil, nil},
		{"the second of two has not started", "Au", come, system.ErrNotStarted, nil},
		{"a third before the second has started, as a learner", "Au", learn, system.ErrUnhealthy, nil},
		{"three that have just met", "Ann", come, system.ErrUnhealthy, nil},
		{"a learner of three that have just met", "Ann", learn, system.ErrUnhealthy, nil},
		{"one of three is down", "Abd", come, system.ErrUnhealthy, nil},
		{"a learner while one of three is down", "Abd", learn, system.ErrUnhealthy, nil},
		{"one of four is down", "Abcd", come, nil, nil},
		{"a learner while one of five is down", "Abccd", learn, nil, nil},
		{"two of five are down", "Abcdd", learn, system.ErrUnhealthy, nil},
		{"learners are not counted", "Abcl", come, nil, nil},

		{"a learner of one", "Al", vote, nil, nil},
		{"a learner while two of three have not started", "Auul", vote, system.ErrNotStarted, nil},

		{"the last one", "A", goes(1), system.ErrNotStarted, system.ErrNotStarted},
		{"one of two", "Ab", goes(2), nil, nil},
		{"this one of two", "Ab", goes(1), nil, nil},
		{"one of three", "Abc", goes(3), nil, nil},
		{"one of three that have just met", "Ann", goes(2), system.ErrUnhealthy, nil},
		{"one that is down", "Abd", goes(3), nil, nil},
		{"one that is down, of those that have just met", "And", goes(3), nil, nil},
		{"one that runs, of three of which one is down", "Abd", goes(2), system.ErrUnhealthy, system.ErrUnhealthy},
		{"one that never started", "Au", goes(2), nil, nil},
		{"one of three of which one is behind", "Abs", goes(2), system.ErrUnhealthy, system.ErrUnhealthy},
		{"a second one while one leaves", "Abx", goes(2), system.ErrUnhealthy, system.ErrUnhealthy},
		{"one of three where the others have not started", "Auu", goes(1), system.ErrNotStarted, system.ErrUnhealthy},
		{"a learner", "Adl", goes(3), nil, nil},
	} {
		if err := may(tc.members, true, tc.change); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.want)
		}
		if err := may(tc.members, false, tc.change); !errors.Is(err, tc.lax) {
			t.Errorf("%s, without the strict check: %v, want %v", tc.what, err, tc.lax)
		}
	}
}
