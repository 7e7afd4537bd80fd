package raft

// Mark is a moment at a leader: the batches that it proposes afterwards in the term have higher numbers.
//
// Where such a batch has applied, the leader has led after the mark, and what was acknowledged before the mark
// is applied: no later term had a leader when the batch was proposed, since that leader's log would lack it. So a
// mark that is taken after a question came, and then passed, proves what Confirm would, at no cost; and the state
// of any replica shows it. While nothing is proposed it proves nothing.
type Mark struct{ Term, Number uint64 }

// Mark returns the moment of the call, if this replica serves the term.
func (r *Replica) Mark(term uint64) (m Mark, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Mark{term, r.number}, term != 0 && r.serving == term
}

// Passed reports whether this replica has applied something of a mark's term that was proposed after it.
func (r *Replica) Passed(m Mark) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.applied.term == m.Term && r.applied.number > m.Number
}
