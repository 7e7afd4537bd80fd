package raft

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
)

// An acknowledgement is sent once, unless the first may have been lost; all else is sent as it comes.
func TestAcknowledgementsAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp := func(change func(*raftpb.Message)) raftpb.Message {
			m := raftpb.Message{Type: raftpb.ReplicateResp, ShardID: 1, From: 1, To: 2, Term: 3, LogIndex: 10}
			if change != nil {
				change(&m)
			}
			return m
		}
		same := resp(nil)
		sent := make(acks)
		for _, step := range []struct {
			name     string
			messages []raftpb.Message
			news     int
		}{
			{"the first", []raftpb.Message{same}, 1},
			{"again", []raftpb.Message{same, same}, 0},
			{"of another shard", []raftpb.Message{resp(func(m *raftpb.Message) { m.ShardID = 2 })}, 1},
			{"still known", []raftpb.Message{same}, 0},
			{"to another replica", []raftpb.Message{resp(func(m *raftpb.Message) { m.To = 4 }), same}, 2},
			{"in another term", []raftpb.Message{resp(func(m *raftpb.Message) { m.Term = 4 }), same}, 2},
			{"a lower index", []raftpb.Message{resp(func(m *raftpb.Message) { m.LogIndex = 9 }), same}, 2},
			{"a rejection", []raftpb.Message{resp(func(m *raftpb.Message) { m.Reject = true }), same}, 1},
			{"others", []raftpb.Message{{Type: raftpb.HeartbeatResp}, same, {Type: raftpb.HeartbeatResp}}, 2},
		} {
			if got := sent.news(step.messages); len(got) != step.news {
				t.Errorf("%s: %v is sent, want %d messages", step.name, got, step.news)
			}
		}
		time.Sleep(ackLoss)
		if got := sent.news([]raftpb.Message{same}); len(got) != 1 {
			t.Errorf("one that may have been lost is not sent again")
		}
	})
}
