package raft

import (
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
)

// A read waits for its proof when the only other voter is removed, and goes on waiting: dragonboat then sends no heartbeats to
// replicas without a vote. One that was not there when it was added gets all that it lacks nevertheless, and is heard of.
func TestWhoHasNoVoteIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, _ := c.leader(0)
		b := c.other(a)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		version := c.members().Version
		c.net.setDrop(func(from, _ string, m *raftpb.Message) bool {
			return from == c.addr(b.id) && m.Type == raftpb.HeartbeatResp
		})
		read := make(chan error, 1)
		go func() {
			read <- a.r.Confirm(t.Context())
		}()
		time.Sleep(10 * time.Millisecond)
		if err := a.r.RemoveMember(t.Context(), b.id, version); err != nil {
			t.Fatal(err)
		}
		term := a.r.Serving()
		c.stop(b)
		c.net.heal()
		c.addNonVoting(3)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // what was sent at once has reached nobody
		d := c.join(3)
		heard := func() bool {
			if _, ok := a.r.Follows(3); ok {
				return true
			}
			a.r.Resend(3)
			return false
		}
		await(t, func() bool { return heard() && d.m.get("x") == 2 })
		// It is heard of again when it has all there is.
		time.Sleep(10 * time.Second)
		await(t, heard)
		if now := a.r.Serving(); now != term {
			t.Errorf("serves in term %d, before %d", now, term)
		}
		if err := <-read; err != nil {
			t.Errorf("the read: %v", err)
		}
	})
}
