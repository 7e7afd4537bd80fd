package raft

import (
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
)

const (
	// onlyVoterPause lies between a replica's start and its first attempt to lead at once. Each
	// further pause is twice as long: a log that takes long to apply is not asked of in vain.
	onlyVoterPause = 5 * time.Millisecond
	// membershipRead bounds the bytes of a log that are read at a time.
	membershipRead = 1 << 20
)

// leadAlone has a replica that is its group's only voter elected at once, which otherwise waits
// for the end of a random timeout: there is nobody to wait for. A replica that has others to ask
// is left to Raft's timeouts, and so is one that takes longer to start than those.
func (r *Replica) leadAlone() {
	for pause := onlyVoterPause; pause < r.host.election(); pause *= 2 {
		r.mu.Lock()
		led, changed := r.closed || r.known.ReplicaID != 0, r.changed
		r.mu.Unlock()
		if led {
			return
		}
		if r.onlyVoter() {
			// No term: it is that of the replica, whatever that is. Raft drops it while committed
			// entries are to be applied.
			r.host.inbox.put(raftpb.Message{Type: raftpb.TimeoutNow, ShardID: r.shardID, To: r.replicaID})
		}
		r.pause(changed, pause)
	}
}

// onlyVoter reports whether this replica is its group's only voter.
func (r *Replica) onlyVoter() bool { return r.only(r.Voters()) }

// only reports whether this replica is the only one of some voters, those of a version by the entries
// that it has applied. While it reads a log at the start they are
// former ones, so nothing further of the log may change them.
func (r *Replica) only(version uint64, voters map[uint64]string) bool {
	_, votes := voters[r.replicaID]
	return votes && len(voters) == 1 && !r.changesMembers(version)
}

// changesMembers reports whether the log has a change of the group's members behind an index. One that
// can't be read may have.
func (r *Replica) changesMembers(index uint64) bool {
	rs, err := r.host.logs.ReadRaftState(r.shardID, r.replicaID, index)
	if err != nil {
		return true
	}
	for at, end := rs.FirstIndex, rs.FirstIndex+rs.EntryCount; at < end; {
		entries, _, err := r.host.logs.IterateEntries(nil, 0, r.shardID, r.replicaID, at, end, membershipRead)
		if err != nil || len(entries) == 0 {
			return true
		}
		for i := range entries {
			if entries[i].Type == raftpb.ConfigChangeEntry {
				return true
			}
		}
		at = entries[len(entries)-1].Index + 1
	}
	return false
}
