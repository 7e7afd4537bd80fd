package system

import "testing"

// The first data directory that a node announces stays its own.
func TestInstanceStays(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, bootstrap{Cluster: ClusterRecord{ID: 1}, Nodes: []NodeRecord{{ID: 1}, {ID: 2}}})
	for _, tc := range []struct {
		node NodeRecord
		want bool
	}{
		{NodeRecord{ID: 1, Instance: "a"}, true},
		{NodeRecord{ID: 1, Instance: "a", Name: "n"}, true},
		{NodeRecord{ID: 1, Instance: "b"}, false},
		{NodeRecord{ID: 1}, false},
		{NodeRecord{ID: 3, Instance: "c"}, false},
	} {
		if got := s.apply(kindNode, tc.node); got != tc.want {
			t.Errorf("%+v: %t", tc.node, got)
		}
	}
	if n := s.m.State().Nodes[1]; n.Instance != "a" || n.Name != "n" {
		t.Errorf("node 1 is %+v", n)
	}
	s.reloaded()
}
