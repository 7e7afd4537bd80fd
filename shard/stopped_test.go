package shard

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	sm "github.com/lni/dragonboat/v4/statemachine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A node that stops while it takes in a snapshot keeps its old state, says so in
// the words that dragonboat knows, and can be closed.
func TestStoppedSnapshotLeavesTheState(t *testing.T) {
	c := newDataCluster(t, 1)
	defer c.close()
	nd, _ := c.leader(0)
	for i := range snapshotStopEvery {
		nd.put(t, fmt.Sprint("k", i), 0)
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
	if n := nd.count(t, "k", "l"); n != snapshotStopEvery {
		t.Errorf("%d keys are left of %d", n, snapshotStopEvery)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	rev := nd.put(t, "k0", 0)
	if _, err := nd.data.Write(ctx, KindCompact, &pb.CompactionRequest{Revision: rev}); err != nil {
		t.Fatal(err)
	}
	if err := nd.data.AwaitSwept(ctx, rev); err != nil {
		t.Errorf("the sweep stands still: %v", err)
	}
}
