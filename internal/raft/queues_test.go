package raft

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// What a replica takes from its start on is small: dragonboat has the variables that are set for it, and
// uses them. With its own values a replica takes 0.8 MiB more.
func TestQueuesAreSmall(t *testing.T) {
	const limit = 3 << 19
	synctest.Test(t, func(t *testing.T) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := newCluster(t, 1)
		defer c.close()
		c.leader(0)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > limit {
			t.Errorf("a host with a replica took %d bytes of memory, want %d at most", took, limit)
		} else {
			t.Logf("a host with a replica took %d bytes of memory", took)
		}
	})
}
