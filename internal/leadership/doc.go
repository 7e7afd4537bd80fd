// Package leadership sees to it that the right nodes lead: leaders are spread over the
// nodes and handed over before a node stops (Spreader), and those of a node that is gone
// get successors sooner than Raft's own timeouts would have them (Succession).
//
// Nothing here decides who leads: Raft does. What is wrong here costs a change of leader
// and never a promise.
package leadership
