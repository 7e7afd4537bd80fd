package raft

import (
	"testing"
	"testing/synctest"
	"time"
)

// A replica that joins while much is written is given one snapshot, however long that takes, and goes on from there: the log is not cut
// behind its back. One that is down holds nothing up.
func TestLogIsKeptForOneThatJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := makeCluster(t, 3, cluster{snapshots: 100, kept: 10})
		defer c.close()
		c.net.slow = 10 * time.Second // there are two parts at least
		a, _ := c.leader(0)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if _, err := c.add(a, "x"); err != nil {
					t.Error(err)
				}
			}
		}()
		first := func() uint64 {
			log, err := a.host.nh.GetLogReader(testShard)
			if err != nil {
				t.Fatal(err)
			}
			first, _ := log.GetRange()
			return first
		}
		await(t, func() bool { return first() > 100 })
		c.stop(c.other(a))
		d := c.join(4)
		c.addNonVoting(4)
		for range 100 {
			time.Sleep(time.Second)
			if d.r.Applied()+50 > a.r.Applied() {
				break
			}
		}
		if n := c.net.streams.Load(); d.r.Applied() == 0 || n != 1 {
			t.Errorf("%d snapshots were begun, and the replica has applied %d of %d entries", n, d.r.Applied(), a.r.Applied())
		}
		// Then the log is cut again, though one replica is down.
		at := a.r.Applied()
		time.Sleep(5 * time.Second)
		if now := first(); now < at {
			t.Errorf("the log begins at %d, with %d entries applied", now, a.r.Applied())
		}
		close(stop)
		<-done
	})
}
