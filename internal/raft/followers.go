package raft

import (
	"context"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4/raftpb"
)

// followers is what the leaders on a host hear of their followers over Raft itself. A node
// whose calls pass may be out of Raft's reach, where other links carry its messages.
type followers struct {
	// gap is how long a follower may be silent and count as one that answers.
	gap time.Duration

	mu sync.Mutex
	// heard is protected by mu.
	heard map[member]follower
}

// follower is the last that was heard of one.
type follower struct {
	term uint64
	at   time.Time
	// match is the highest index that it has acknowledged in the term.
	match uint64
	// since is when it began to answer without a gap.
	since time.Time
}

// note takes note of the answers of followers in a batch of messages.
func (f *followers) note(b *raftpb.MessageBatch) {
	for i := range b.Requests {
		m := &b.Requests[i]
		if m.Type != raftpb.HeartbeatResp && m.Type != raftpb.ReplicateResp {
			continue
		}
		match := m.LogIndex
		if m.Type == raftpb.HeartbeatResp || m.Reject {
			match = 0
		}
		f.mu.Lock()
		if f.heard == nil {
			f.heard = make(map[member]follower)
		}
		id := member{m.ShardID, m.From}
		last := f.heard[id]
		if m.Term >= last.term {
			if m.Term == last.term {
				match = max(match, last.match)
			}
			now, since := time.Now(), last.since
			if now.Sub(last.at) > f.gap {
				since = now
			}
			f.heard[id] = follower{m.Term, now, match, since}
		}
		f.mu.Unlock()
	}
}

// of returns what was heard of a replica in a term.
func (f *followers) of(shardID, replicaID, term uint64) (follower, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, ok := f.heard[member{shardID, replicaID}]
	return h, ok && h.term == term
}

// lagging reports whether a replica of a shard, which answers in a term, has not acknowledged an entry.
func (f *followers) lagging(shardID, term, index uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for m, h := range f.heard {
		if m.shardID == shardID && h.term == term && h.match < index && time.Since(h.at) <= f.gap {
			return true
		}
	}
	return false
}

// Follows reports whether another replica of the shard, which this one leads, has answered
// over Raft within half an election timeout, the gap, and how far it has acknowledged the log. It is
// a belief, no proof.
func (r *Replica) Follows(replicaID uint64) (match uint64, ok bool) {
	term := r.Serving()
	if term == 0 {
		return 0, false
	}
	f, ok := r.host.inbox.followers.of(r.shardID, replicaID, term)
	return f.match, ok && time.Since(f.at) <= r.host.inbox.followers.gap
}

// maxLag is how many entries a replica may be behind to count as one that has caught up.
const maxLag = 500

// CaughtUp reports whether a replica that has acknowledged or applied the log up to an index, 0 for nothing, follows one that
// has applied mine without delay. One that has nothing yet does not, however short the log is: it may wait for a
// snapshot that nobody sends.
func CaughtUp(index, mine uint64) bool { return index > 0 && index+maxLag >= mine }

// Followed is what Live needs of a replica that leads.
type Followed interface {
	Applied() uint64
	Follows(replicaID uint64) (match uint64, ok bool)
}

// Live reports whether another replica of the shard of one that leads has caught up, over Raft's own links and by what its node
// says when it is asked what the replica has applied.
func Live(ctx context.Context, r Followed, replicaID uint64, ask func(context.Context) (index uint64, err error)) bool {
	mine := r.Applied()
	if match, ok := r.Follows(replicaID); !ok || !CaughtUp(match, mine) {
		return false
	}
	index, err := ask(ctx)
	return err == nil && CaughtUp(index, mine)
}

// steadyElections is how many election timeouts a replica must have answered without a gap
// to count as steady.
const steadyElections = 10

// Steady reports whether a replica that follows has done so without a gap for a while. One
// whose links come and go is no better a leader for answering now.
func (r *Replica) Steady(replicaID uint64) bool {
	if _, ok := r.Follows(replicaID); !ok {
		return false
	}
	f, ok := r.host.inbox.followers.of(r.shardID, replicaID, r.Serving())
	return ok && time.Since(f.since) >= steadyElections*r.host.election()
}

// election is Raft's shortest timeout of an election.
func (h *Host) election() time.Duration { return h.cfg.Tick * time.Duration(h.cfg.ElectionTicks) }

// AnswerTimeout is how long a node that works takes to answer a question at the most. A message and
// its answer take up to an election timeout where Raft still works; the rest is for the node.
func (r *Replica) AnswerTimeout() time.Duration { return r.host.election() * 5 / 4 }
