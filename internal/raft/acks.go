package raft

import (
	"slices"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
)

// A follower acknowledges every message of its leader, also one that only tells what is committed: with the same index
// as the message before, which had the entries. The leader learns nothing from that, and with few entries
// at a time every second acknowledgement is one.

// ackLoss bounds how long an acknowledgement that was sent keeps others like it from being sent. It may
// have been lost; a leader that misses one asks for another with its next heartbeat.
const ackLoss = 20 * time.Millisecond

// ack is an acknowledgement that was sent.
type ack struct {
	from, to, term, index uint64
	at                    time.Time
}

// acks are the last acknowledgements that were sent over a connection, by shard.
type acks map[uint64]ack

// news returns messages without acknowledgements that tell nothing new.
func (a acks) news(messages []raftpb.Message) []raftpb.Message {
	return slices.DeleteFunc(messages, func(m raftpb.Message) bool {
		if m.Type != raftpb.ReplicateResp || m.Reject {
			return false
		}
		this, last := ack{m.From, m.To, m.Term, m.LogIndex, time.Now()}, a[m.ShardID]
		sent := last.at
		if last.at = this.at; last == this && this.at.Sub(sent) < ackLoss {
			return true
		}
		a[m.ShardID] = this
		return false
	})
}
