package system

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

// system is a system shard's state without the Raft around it.
type system struct {
	t  *testing.T
	db *pebble.DB
	m  *Machine
}

func newSystem(t *testing.T) *system {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := Open(db, []byte("prefix"))
	if err != nil {
		t.Fatal(err)
	}
	return &system{t, db, m}
}

// apply runs one command in a batch of its own and returns its result.
func (s *system) apply(k kind, command any) bool {
	s.t.Helper()
	ok, _ := s.result(k, command).(bool)
	return ok
}

// result is apply for a command whose result is anything.
func (s *system) result(k kind, command any) any {
	s.t.Helper()
	payload, err := json.Marshal(command)
	if err != nil {
		s.t.Fatal(err)
	}
	b := s.db.NewBatch()
	r := s.m.Apply(b)
	result, rejected, failed := r.Command(raft.Command{Kind: raft.Kind(k), Payload: payload}, true)
	if rejected != nil || failed != nil {
		s.t.Fatal(rejected, failed)
	}
	if err := r.Finish(); err != nil {
		s.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		s.t.Fatal(err)
	}
	r.Publish()
	return result
}

// reloaded checks that Pebble holds what memory says.
func (s *system) reloaded() {
	s.t.Helper()
	again, err := Open(s.db, s.m.prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := cmp.Diff(s.m.State(), again.State(), cmpopts.IgnoreUnexported(auth.State{}), cmpopts.EquateEmpty()); diff != "" {
		s.t.Errorf("state in Pebble (-memory +Pebble):\n%s", diff)
	}
}

func cluster(id uint64) bootstrap {
	return bootstrap{
		Cluster: ClusterRecord{ID: id, Version: Version, Epoch: 1, NextShard: placement.FirstDataShard + 1},
		Nodes:   []NodeRecord{{ID: 7, Name: "a", PeerURLs: []string{"http://localhost:2380"}, ClientURLs: []string{"http://localhost:2379"}}},
		Shards:  []ShardRecord{{ID: placement.FirstDataShard, Replicas: map[uint64]uint64{1: 7}, NextReplica: 2}},
		Map:     placement.Map{{Start: []byte{}, Shard: placement.FirstDataShard}},
	}
}

func TestFirstBootstrapWins(t *testing.T) {
	s := newSystem(t)
	if !s.apply(kindBootstrap, cluster(10)) || s.apply(kindBootstrap, cluster(11)) {
		t.Error("the first bootstrap makes the cluster, the second does not")
	}
	if id := s.m.State().Cluster.ID; id != 10 {
		t.Errorf("cluster %d", id)
	}
	s.reloaded()
}

func TestNodeChangesItsURLs(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, cluster(10))
	if s.apply(kindNode, NodeRecord{ID: 8, Name: "stranger"}) {
		t.Error("a stranger was taken in")
	}
	if !s.apply(kindNode, NodeRecord{ID: 7, Name: "a", ClientURLs: []string{"http://127.0.0.1:1"}}) {
		t.Error("the node was not found")
	}
	if got := s.m.State().Nodes[7].ClientURLs; len(got) != 1 || got[0] != "http://127.0.0.1:1" {
		t.Errorf("client URLs %v", got)
	}
	s.reloaded()
}

func TestAlarms(t *testing.T) {
	s := newSystem(t)
	full := AlarmRecord{9, pb.AlarmType_NOSPACE}
	corrupt := AlarmRecord{7, pb.AlarmType_CORRUPT}
	for _, step := range []struct {
		alarm AlarmRecord
		raise bool
		found bool
		left  []AlarmRecord
	}{
		{full, false, false, nil},
		{full, true, false, []AlarmRecord{full}},
		{full, true, true, []AlarmRecord{full}},
		{corrupt, true, false, []AlarmRecord{corrupt, full}},
		{AlarmRecord{0, pb.AlarmType_NOSPACE}, false, false, []AlarmRecord{corrupt, full}},
		{full, false, true, []AlarmRecord{corrupt}},
		{corrupt, false, true, []AlarmRecord{}},
	} {
		if found := s.apply(kindAlarm, alarm{step.alarm, step.raise}); found != step.found {
			t.Errorf("%+v: found %v", step, found)
		}
		if diff := cmp.Diff(step.left, s.m.State().Alarms); diff != "" {
			t.Errorf("%+v: alarms (-want +got):\n%s", step, diff)
		}
	}
	s.apply(kindAlarm, alarm{full, true})
	s.reloaded()
}

func TestPublishedStateNeverChanges(t *testing.T) {
	s := newSystem(t)
	s.apply(kindBootstrap, cluster(10))
	before := s.m.State()
	want := fmt.Sprintf("%+v", *before)
	s.apply(kindAlarm, alarm{AlarmRecord{7, pb.AlarmType_NOSPACE}, true})
	s.apply(kindNode, NodeRecord{ID: 7, Name: "b"})
	if got := fmt.Sprintf("%+v", *before); got != want {
		t.Errorf("published state became %s, was %s", got, want)
	}
}
