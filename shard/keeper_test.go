package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// While a run of commands is being applied, the table of leases is ahead of the
// clock. A lease that was revoked and granted anew there must not end because the
// clock still counts the time of the one before.
func TestExpiryMeansTheGrantOnTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		const id, ttl = 7, 5
		nd.grant(t, id, ttl)
		time.Sleep(ttl*time.Second - raft.LeadershipTick)

		b := nd.db.NewBatch()
		defer func() { _ = b.Close() }()
		if _, err := nd.data.leases.Revoke(b, id); err != nil {
			t.Fatal(err)
		}
		again, err := nd.data.leases.Grant(b, id, ttl)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * raft.LeadershipTick)
		if rec, ok := nd.data.leases.Get(id); !ok || rec != again {
			t.Fatalf("with the time of the first grant the second ended: %v, %v", rec, ok)
		}

		nd.data.keeper.applied(&dataRun{granted: []lease.Record{again}, ended: []int64{id}})
		nd.put(t, "k", id)
		if took := nd.gone(t, "k"); took < ttl*time.Second-time.Millisecond || took > ttl*time.Second+latest {
			t.Errorf("gone %v after the second grant", took)
		}
	})
}
