package raft

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// What dragonboat keeps of entries that are not applied yet is small: it has the variables
// that are set here, and uses them. With its own values an entry takes 40 KiB more.
func TestEntriesInMemoryAreSmall(t *testing.T) {
	const (
		entries = 100
		limit   = 32 << 10
	)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		a, _ := c.leader(0)
		write := func() {
			if _, err := c.add(a, "x"); err != nil {
				t.Fatal(err)
			}
		}
		write()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range entries {
			write()
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / entries; each > limit {
			t.Errorf("an entry took %d bytes of memory, want %d at most", each, limit)
		} else {
			t.Logf("an entry took %d bytes of memory", each)
		}
	})
}
