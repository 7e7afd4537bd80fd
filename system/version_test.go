package system

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// What a later version wrote is never skipped.
func TestLaterCommandsStopTheReplica(t *testing.T) {
	for name, c := range map[string]raft.Command{
		"kind":         {Kind: 200},
		"field":        {Kind: raft.Kind(kindLimit), Payload: []byte(`{"limit":7,"until":9}`)},
		"inner field":  {Kind: raft.Kind(kindBootstrap), Payload: []byte(`{"nodes":[{"id":1,"zone":"a"}]}`)},
		"users":        {Kind: raft.Kind(kindUsers), Payload: []byte{0x98, 0x06, 7}},
		"other change": {Kind: raft.Kind(kindUsers)},
	} {
		s := newSystem(t)
		_, rejected, failed := s.m.Apply(s.db.NewBatch()).Command(c, true)
		if !errors.Is(failed, keys.ErrNewer) || rejected != nil {
			t.Errorf("%s: rejected %v, failed %v", name, rejected, failed)
		}
	}
}

func TestLaterRecordsAreRefused(t *testing.T) {
	for key, value := range map[string]string{
		string(clusterKey()): `{"id":1,"version":1,"mood":"good"}`,
		string(orderKey()):   `{"begun":true,"lower":4}`,
		string(nodeKey(7)):   `{"id":7,"zone":"a"}`,
		"sz":                 `{}`,
	} {
		s := newSystem(t)
		if err := s.db.Set(append(append([]byte(nil), s.m.prefix...), key...), []byte(value), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(s.db, s.m.prefix); !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// announced applies that a node speaks a version, and returns why the replica stops.
func (s *system) announced(node uint64, version uint32) error {
	s.t.Helper()
	b := s.db.NewBatch()
	r := s.m.Apply(b)
	payload, err := encode(NodeRecord{ID: node, Version: version})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, _, failed := r.Command(raft.Command{Kind: raft.Kind(kindNode), Payload: payload}, true); failed != nil {
		return failed
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		s.t.Fatal(err)
	}
	r.Publish()
	return nil
}

// The cluster version is the lowest that all nodes have ever spoken at the same time.
func TestClusterVersion(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, bootstrap{Cluster: ClusterRecord{ID: 1}, Nodes: []NodeRecord{{ID: 1}, {ID: 2}, {ID: 3}}})
	for i, step := range []struct {
		node    uint64
		version uint32
		want    uint32
	}{
		{1, Version, 0},
		{2, Version, 0},
		{2, 0, 0},
		{3, Version, 0},
		{2, Version, Version},
		{1, Version - 1, Version},
		{2, Version + 1, Version},
		{1, Version + 1, Version},
	} {
		if err := s.announced(step.node, step.version); err != nil {
			t.Fatal(err)
		}
		if got := s.m.State().Cluster.Version; got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
		s.reloaded()
	}
	// All others speak more, and this program does not.
	if err := s.announced(3, Version+1); !errors.Is(err, keys.ErrNewer) {
		t.Errorf("raised to %d: %v", Version+1, err)
	}
}

// A node whose program was replaced by an earlier one does not start in a cluster that has gone
// on.
func TestClusterOfALaterVersion(t *testing.T) {
	s := newSystem(t)
	made := cluster(10)
	made.Cluster.Version = Version + 1
	s.apply(kindBootstrap, made)
	if _, err := Open(s.db, s.m.prefix); !errors.Is(err, keys.ErrNewer) {
		t.Error(err)
	}
}
