package commitmodel

import "testing"

// Every rule has its case, and the spaces meet every kind of action: none is out of reach.
func TestAllIsMet(t *testing.T) {
	cases := make(map[rule]bool)
	for _, tc := range ruleCases {
		cases[tc.rule] = true
	}
	for r := range rules {
		if !cases[r] && r != youngerGivesBack {
			t.Errorf("no case for rule %s", r)
		}
	}
	met := make(map[kind]bool)
	for _, fence := range []bool{false, true} {
		sc := walked
		sc.fence = fence
		m := sc.without()
		begins := m.initial()
		for seed := range uint64(500) {
			for _, act := range m.walk(begins, seed).acts {
				met[act.kind] = true
			}
		}
	}
	for k := range kinds {
		if !met[k] && k != presumeFinish { // which needs a rule left out
			t.Errorf("no action of kind %d", k)
		}
	}
}
