package node

import "github.com/latchkey-db/latchkey/system"

// memberRules judge changes of the members as etcd does, by who has started, who is reached and who has caught up.
type memberRules struct {
	state *system.State
	// strict is --strict-reconfig-check: without it only what takes the majority from a cluster is refused.
	strict bool
	// reached reports whether a node is there, as far as this one knows, and with long for so long that it may be counted
	// on: etcd's health interval, in which this node would have missed it.
	reached func(id uint64, long bool) bool
	// caughtUp reports whether a node has applied about as much as this one.
	caughtUp func(id uint64) bool
}

// voting returns the members that vote, or will.
func (r *memberRules) voting() []system.NodeRecord {
	var all []system.NodeRecord
	for _, m := range r.state.SortedNodes() {
		if !m.Learner {
			all = append(all, m)
		}
	}
	return all
}

// mayCome judges whether a member may be added: one more that votes must leave those that have started a majority, and
// those that are reached must be one although the new one, or the learner when it is promoted, is not there.
func (r *memberRules) mayCome(learner bool) error {
	if !r.strict {
		return nil
	}
	all := r.voting()
	started, reached := 0, 0
	for _, m := range all {
		if m.Started() {
			started++
		}
		if r.reached(m.ID, true) {
			reached++
		}
	}
	switch {
	case len(all) == 1 && (learner || started == 1): // one alone grows
		return nil
	case !learner && started < majority(len(all)+1):
		return system.ErrNotStarted
	case reached < majority(len(all)+1):
		return system.ErrUnhealthy
	}
	return nil
}

// mayVote judges whether a learner, which has started, may vote.
func (r *memberRules) mayVote() error {
	started, all := 1, 1
	for _, m := range r.voting() {
		all++
		if m.Started() {
			started++
		}
	}
	if r.strict && started < majority(all) {
		return system.ErrNotStarted
	}
	return nil
}

// mayGo judges whether a member may be removed. If it votes a majority of the others must have started, and be
// there and have caught up: for long if it is there, too, and so may be one that they need.
func (r *memberRules) mayGo(gone system.NodeRecord) error {
	if gone.Learner {
		return nil
	}
	long := r.strict && r.reached(gone.ID, false)
	all, started, live := 0, 0, 0
	for _, m := range r.voting() {
		if m.ID == gone.ID {
			continue
		}
		all++
		if m.Started() {
			started++
		}
		if !m.Leaving && r.reached(m.ID, long) && r.caughtUp(m.ID) {
			live++
		}
	}
	switch {
	case (r.strict || all == 0) && started < majority(all):
		return system.ErrNotStarted
	case live < majority(all):
		return system.ErrUnhealthy
	}
	return nil
}

// majority is how many of some members are more than half of them.
func majority(members int) int { return members/2 + 1 }
