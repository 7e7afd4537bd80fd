package raft

import (
	"bytes"
	"fmt"
	"testing"

	sm "github.com/lni/dragonboat/v4/statemachine"
)

// A node that stops while it takes in a snapshot keeps its old state, says so in
// the words that dragonboat knows, and can be closed.
func TestStoppedSnapshotLeavesTheState(t *testing.T) {
	c := newCluster(t, 1)
	defer c.close()
	nd, _ := c.leader(0)
	for i := range snapshotStopEvery {
		if _, err := c.add(nd, fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	s := &stateMachine{r: nd.r, db: nd.db}
	pinned, err := s.PrepareSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := s.SaveSnapshot(pinned, &saved, nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	close(stop)

	if pinned, err = s.PrepareSnapshot(); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSnapshot(pinned, &bytes.Buffer{}, stop); err != sm.ErrSnapshotStopped { //nolint:errorlint // dragonboat compares so
		t.Errorf("save: %v", err)
	}
	if err := s.RecoverFromSnapshot(&saved, stop); err != sm.ErrSnapshotStopped { //nolint:errorlint // dragonboat compares so
		t.Errorf("recover: %v", err)
	}
	nd.m.mu.Lock()
	n, replacing := len(nd.m.cells), nd.m.replacing
	nd.m.mu.Unlock()
	if n != snapshotStopEvery || replacing {
		t.Errorf("%d cells are left of %d; being replaced: %t", n, snapshotStopEvery, replacing)
	}
	if v, err := c.add(nd, "k0"); err != nil || v != 2 {
		t.Errorf("the next command: %d, %v", v, err)
	}
}

// A replica whose host is closed knows no voters: whoever asks for them may do so while a node stops.
func TestVotersOfAClosedHost(t *testing.T) {
	c := newCluster(t, 1)
	defer c.close()
	nd, _ := c.leader(0)
	if _, voters := nd.r.Voters(); len(voters) != 1 {
		t.Errorf("voters %v", voters)
	}
	c.stop(nd)
	if version, voters := nd.r.Voters(); version != 0 || voters != nil {
		t.Errorf("when it is closed: version %d, voters %v", version, voters)
	}
}
