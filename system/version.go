package system

import (
	"fmt"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// What a log says must be understood by all who apply it, or their replicas part. So a node
// stops at a kind of command, a field or a record that it does not know, and what is new is
// proposed only when all nodes know it. The cluster version, a number in the system shard's
// state, says so: it is the lowest that all nodes speak. Each announces with its start what it
// speaks, by the same log, and the announcement that leaves none behind raises the number. It is never lowered:
// what has been written stays. A node that does not speak it does not start, or stops where
// it hears of it.
//
// A change of formats takes the next number: its kinds, fields and forms are proposed if the
// state that the proposer knows allows it. That may be older than the newest, which is safe.

const (
	// Version is the newest cluster version that this program speaks.
	Version = 6
	// firstVersion is that of a cluster whose nodes have not announced what they speak.
	firstVersion = 1

	// lowersLimit is the version from which on kindLower is proposed.
	lowersLimit = 2
	// commitsWide is the version from which on shards know transactions over several of them.
	commitsWide = 3
	// endsTogether is the version from which on leases over several shards end in such transactions.
	endsTogether = 4
	// changesMembers is the version from which on nodes are added and removed.
	changesMembers = 5
	// preparesLess is the version from which on the Prepares of such transactions take no numbers, and homes
	// that are only put to need none.
	preparesLess = 5
	// asksWithVote is the version from which on questions to the oracle say in which term the node that asks has voted.
	asksWithVote = 6
)

// allows reports whether all nodes know what came with a version. Proposers ask it.
func (s *State) allows(version uint32) bool { return s.Cluster.Version >= version }

// CommitsWide reports whether all nodes know transactions over several shards.
func (s *State) CommitsWide() bool { return s.allows(commitsWide) }

// EndsTogether reports whether all nodes know ends of leases over several shards as transactions.
func (s *State) EndsTogether() bool { return s.allows(endsTogether) }

// PreparesLess reports whether all nodes know Prepares without numbers and homes that are not prepared.
func (s *State) PreparesLess() bool { return s.allows(preparesLess) }

// checkVersion returns an error if this program does not speak the cluster version.
func (s *State) checkVersion() error {
	if s.Cluster.Version > Version {
		return fmt.Errorf("the cluster speaks version %d, this program at most %d: %w", s.Cluster.Version, Version, keys.ErrNewer)
	}
	return nil
}

// lowest returns the lowest version that the nodes speak but those that are left out, 0 if there are no others.
func (s *State) lowest(leftOut func(NodeRecord) bool) (all uint32) {
	first := true
	for _, n := range s.Nodes {
		if !leftOut(n) && (first || n.Version < all) {
			all, first = n.Version, false
		}
	}
	return all
}

// raiseVersion raises the cluster version to the lowest that all nodes of s speak, but those that are being removed and have never said
// what they speak: they will not take part.
func (r *run) raiseVersion(s *State) error {
	all := s.lowest(func(n NodeRecord) bool { return n.Leaving && n.Version == 0 })
	if all > s.Cluster.Version {
		s.Cluster.Version = all
		r.out.set(clusterKey(), s.Cluster)
	}
	return s.checkVersion()
}
