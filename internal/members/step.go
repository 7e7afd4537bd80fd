package members

import (
	"maps"
	"slices"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// want is what the record asks of one replica of a shard.
type want struct {
	// host is the NodeHostID of its host.
	host string
	// votes says that it is to be a voter, leaving that it is to go.
	votes, leaving bool
}

// verb is what a step does.
type verb uint8

const (
	nothing verb = iota
	add
	promote
	remove
)

func (v verb) String() string { return [...]string{"nothing", "add", "promote", "remove"}[v] }

// step is one change of a shard's members.
type step struct {
	do      verb
	replica uint64
}

// plan is what is known when the next step is looked for, at the shard's leader.
type plan struct {
	// wanted are the replicas of the record by id.
	wanted map[uint64]want
	// have are the shard's members.
	have raft.Members
	// self is the leader's replica. It is never removed: it hands over first.
	self uint64
	// live reports whether a replica follows without delay, and so counts for a majority.
	live func(replica uint64) bool
}

// next returns the next step. done says that no step will be needed before the record changes; without a step
// and not done something is waited for.
func (p plan) next() (s step, done bool) {
	done = true
	for _, id := range slices.Sorted(maps.Keys(p.wanted)) {
		w := p.wanted[id]
		_, votes := p.have.Voters[id]
		_, follows := p.have.NonVoting[id]
		_, removed := p.have.Removed[id]
		switch {
		case w.leaving && !removed:
			// One that was never added goes, too: a leader that does not know yet that it is leaving could add it later.
			done = false
			if id != p.self && (!votes || p.keepsMajority(id)) {
				return step{remove, id}, false
			}
		case removed || votes:
		case !follows:
			return step{add, id}, false
		case w.votes:
			done = false
			if p.live(id) && p.gainsMajority() {
				return step{promote, id}, false
			}
		}
	}
	return step{}, done
}

// keepsMajority reports whether those that are left when a voter is removed have a majority of live
// ones. Who is leaving counts as dead.
func (p plan) keepsMajority(gone uint64) bool {
	live, all := 0, 0
	for id := range p.have.Voters {
		if id == gone {
			continue
		}
		all++
		if !p.wanted[id].leaving && p.votes(id) {
			live++
		}
	}
	return live > all/2
}

// gainsMajority reports whether one more live voter leaves a majority of live ones. Who is leaving votes until it has been
// removed, which it is after this step: where all that vote are leaving nobody else could ever vote.
func (p plan) gainsMajority() bool {
	live := 1
	for id := range p.have.Voters {
		if p.votes(id) {
			live++
		}
	}
	return live > (len(p.have.Voters)+1)/2
}

// votes reports whether a voter is there to vote.
func (p plan) votes(id uint64) bool { return id == p.self || p.live(id) }
