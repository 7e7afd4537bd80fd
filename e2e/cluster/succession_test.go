package cluster

import (
	"context"
	"testing"
	"time"
)

// Raft misses a leader after an election timeout. A node whose process is no more is
// not waited for.
func TestKilledNodeIsNotWaitedFor(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		const election = 10 * time.Second // long enough for a busy machine
		c := newCluster(t, shards, nil, "--heartbeat-interval", "1000", "--election-timeout", "10000")
		leader := c.leader()
		killed := time.Now()
		c.must(c.Nodes[leader].Kill())
		ctx, cancel := context.WithTimeout(t.Context(), election-time.Since(killed))
		defer cancel()
		for _, key := range inShards(shards, "succession") {
			if _, err := c.clients[(leader+1)%3].Put(ctx, key, ""); err != nil {
				t.Errorf("put %s %v after a leader was killed: %v", key, time.Since(killed), err)
			}
		}
	})
}
