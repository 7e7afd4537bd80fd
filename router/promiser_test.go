package router

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// A shard without a leader holds up the watches that wait for it, and no others.
func TestPromisesPastADeadShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		dead, err := shard.Start(s.host, shard.DataConfig{
			ShardID: 9, ReplicaID: 1, Members: map[uint64]string{1: hostID, 2: "00000000-0000-4000-8000-000000000002"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer dead.Close()
		s.promiser.want(dead, 100)
		time.Sleep(time.Second)
		g := s.NewWatchGroup()
		defer g.Close()
		g.Add(1, mvcc.WatchOptions{Key: []byte("a"), End: []byte{0}})
		for range 10 {
			wrote, err := s.Put(t.Context(), put("a"))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if rev := first(t, g); rev != wrote.Header.Revision {
				t.Errorf("event %d, want %d", rev, wrote.Header.Revision)
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("the event took %v", took)
			}
		}
	})
}
