package raft

import (
	"sync"
	"testing"
	"testing/synctest"
)

// What was promised once of all keys is not proved again, and who asks for no more than is
// being promised shares it.
func TestPromisesOfAllKeysAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var resolved int64
		c := makeCluster(t, 1, cluster{resolved: func(rev int64) { resolved = rev }})
		defer c.close()
		nd, _ := c.leader(0)
		before := nd.r.Applied()
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				index, err := nd.r.PromiseAll(t.Context(), 100)
				if err != nil || index < before {
					t.Errorf("promised at %d, %v", index, err)
				}
			})
		}
		asking.Wait()
		if resolved != 100 {
			t.Errorf("resolved up to %d", resolved)
		}
		// Nobody leads any more who could prove anything.
		nd.r.stepDown(ErrNotLeader)
		if index, err := nd.r.PromiseAll(t.Context(), 100); err != nil || index < before {
			t.Errorf("what was promised: %d, %v", index, err)
		}
		if index, err := nd.r.PromiseAll(t.Context(), 101); err == nil {
			t.Errorf("promised without a leader at %d", index)
		}
	})
}
