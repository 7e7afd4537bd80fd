package raft

import "github.com/lni/dragonboat/v4/raftpb"

// Resend has this replica, which leads, send again to one that has no vote and of which it hears nothing (Follows). It does not
// wait, and is repeated as long as nothing is heard.
//
// Dragonboat sends no heartbeats to replicas without a vote while a proof of leadership is under way, and one that was when the last
// other voter was removed never ends: what they have missed then is not sent again, and what they hold is not known. So the leader is told that the
// replica has answered a heartbeat, which says nothing but that it is to be sent what it lacks, and of one without a vote proves
// nothing. One that lacks nothing answers a further entry.
func (r *Replica) Resend(replicaID uint64) {
	term := r.Serving()
	if term == 0 || r.votes(replicaID) {
		return
	}
	if f, ok := r.host.inbox.followers.of(r.shardID, replicaID, term); ok && f.match >= r.Applied() {
		r.lengthen()
	}
	r.host.inbox.put(raftpb.Message{Type: raftpb.HeartbeatResp, ShardID: r.shardID, To: r.replicaID, From: replicaID, Term: term})
}
