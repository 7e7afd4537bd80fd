package raft

import (
	"testing"
	"testing/synctest"
	"time"
)

// A replica that stands for election leads long before the shortest timeout, whether the
// leader that it takes for gone is so or not, and nothing is lost.
func TestCampaign(t *testing.T) {
	for _, gone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3)
			defer c.close()
			a, term := c.leader(0)
			if v, err := c.add(a, "x"); err != nil || v != 1 {
				t.Fatalf("add: %d, %v", v, err)
			}
			b := c.other(a)
			// One that lacks what was acknowledged is not elected.
			for b.r.Leader().ReplicaID != a.id || b.r.Applied() < a.r.Applied() {
				time.Sleep(time.Millisecond)
			}
			if gone {
				c.net.isolate(c.addr(a.id))
			}
			begin := time.Now()
			b.r.Campaign(a.id)
			next, _ := c.leader(term)
			if took := time.Since(begin); next != b || took > 100*time.Millisecond {
				t.Errorf("leader gone %v: %d leads after %v, %d stood for election", gone, next.id, took, b.id)
			}
			if v, err := c.add(b, "x"); err != nil || v != 2 {
				t.Errorf("add at successor: %d, %v", v, err)
			}
		})
	}
}

// Nobody stands against a leader other than the one that is said to be gone.
func TestCampaignAgainstAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		b := c.other(a)
		a.r.Campaign(b.id)
		b.r.Campaign(b.id)
		time.Sleep(time.Second)
		if got := a.r.Serving(); got != term {
			t.Errorf("the leader served term %d and serves %d", term, got)
		}
	})
}
