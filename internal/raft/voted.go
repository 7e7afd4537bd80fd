package raft

import "context"

// Voted comes with a question to a leader: the replica on the node that asks had voted in no term above Term when it
// began to ask.
//
// A leader that has voted in no term above its own when the question has come needs no other proof, if the two are a
// majority of the voters: whoever had been elected in a later term before the question began would have had the
// vote of one of them. So nobody had led in a later term when the question began. Confirm proves that by a round of
// messages.
type Voted struct{ ReplicaID, Term uint64 }

// Voted returns the newest term in which this replica can have voted. The log has a term before anything is said in it.
func (r *Replica) Voted() Voted {
	return Voted{ReplicaID: r.replicaID, Term: r.host.logs.log.Term(r.shardID, r.replicaID)}
}

// ConfirmFor is Confirm for a question that came from the node of another replica, of which it says what voted does;
// nothing if that is zero. What is proved was so when the question began, or later.
func (r *Replica) ConfirmFor(ctx context.Context, voted Voted) error {
	if ctx.Err() == nil && r.provedBy(voted) {
		return nil
	}
	return r.Confirm(ctx)
}

// maxProvedByTwo is how many voters there may be so that two are a majority.
const maxProvedByTwo = 3

// provedBy reports whether a question that has come proves that this replica leads in the term that it serves. One
// change of the members may be under way of which this replica has not heard: any majority behind it has one of
// the two as well.
func (r *Replica) provedBy(voted Voted) bool {
	term := r.Serving()
	if term == 0 || voted.ReplicaID == r.replicaID || voted.Term > term {
		return false
	}
	_, voters := r.Voters()
	_, here := voters[r.replicaID]
	_, there := voters[voted.ReplicaID]
	return here && there && len(voters) <= maxProvedByTwo && r.Voted().Term == term
}
