package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

// monitorPause lies between two looks at the members of all shards. There is one after each step, too.
const monitorPause = 10 * time.Millisecond

// monitor checks at each step, and every few milliseconds, what must hold of the members of each shard, by the newest
// members that any replica has applied:
//
//   - a majority of the voters are replicas whose disks are there,
//   - no majority of them is possible without one that holds all that anybody knows to be committed,
//   - one replica serves as leader in a term, and it holds all that was committed before,
//   - two successive states of the members differ by one replica, and are the same wherever they have applied,
//   - a replica that was removed is never a member again,
//   - one of the system shard has gone last, and the record says so of a node after that.
type monitor struct {
	c *cluster

	mu sync.Mutex
	// shards is protected by mu.
	shards map[uint64]*watched
}

// watched is what is known of the members of a shard.
type watched struct {
	// voters and whole are the members by version, newest is the highest.
	voters map[uint64]map[uint64]string
	whole  map[uint64]raft.Members
	newest uint64
	// were are all that were members at some time, removed those that are none any more.
	were, removed map[uint64]bool
	// leaders are who served, by term.
	leaders map[uint64]uint64
	// committed is the highest index that any replica knew to be committed at the last look, and held is up to
	// where a replica has the log.
	committed uint64
	held      map[uint64]uint64
}

func newMonitor(c *cluster) *monitor { return &monitor{c: c, shards: make(map[uint64]*watched)} }

// of returns what is known of a shard. m.mu must be held.
func (m *monitor) of(shard uint64) *watched {
	w := m.shards[shard]
	if w == nil {
		w = &watched{
			voters: make(map[uint64]map[uint64]string), whole: make(map[uint64]raft.Members),
			were: make(map[uint64]bool), removed: make(map[uint64]bool),
			leaders: make(map[uint64]uint64), held: make(map[uint64]uint64),
		}
		m.shards[shard] = w
	}
	return w
}

// sent notes what messages say of what their senders hold.
func (m *monitor) sent(b *raftpb.MessageBatch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range b.Requests {
		switch r := &b.Requests[i]; {
		case r.Type == raftpb.ReplicateResp && !r.Reject:
			m.of(r.ShardID).holds(r.From, r.LogIndex)
		case r.Type == raftpb.Replicate, r.Type == raftpb.Heartbeat:
			m.of(r.ShardID).holds(r.From, r.Commit)
		}
	}
}

func (w *watched) holds(replica, index uint64) { w.held[replica] = max(w.held[replica], index) }

func (m *monitor) run() {
	for pause(m.c.ctx, monitorPause) {
		m.look()
	}
}

// told takes note of the members that a shard's leader has proved.
func (m *monitor) told(shard uint64, now raft.Members) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.of(shard)
	if before, ok := w.whole[now.Version]; ok && !same(before, now) {
		m.c.tb.Errorf("shard %d: members of version %d are %v and %v", shard, now.Version, before, now)
	}
	w.whole[now.Version] = now
	m.voting(shard, now.Version, now.Voters)
	for _, ids := range []map[uint64]string{now.Voters, now.NonVoting} {
		for id := range ids {
			w.were[id] = true
			if _, gone := now.Removed[id]; gone || w.removed[id] && now.Version == w.newest {
				m.c.tb.Errorf("shard %d: replica %d was removed and is a member in %v", shard, id, now)
			}
		}
	}
	if now.Version == w.newest {
		for id := range w.were {
			_, votes := now.Voters[id]
			_, follows := now.NonVoting[id]
			if !votes && !follows {
				w.removed[id] = true
			}
		}
	}
}

func same(a, b raft.Members) bool {
	return maps.Equal(a.Voters, b.Voters) && maps.Equal(a.NonVoting, b.NonVoting) && maps.Equal(a.Removed, b.Removed)
}

// voting takes note of the voters of a version. m.mu must be held.
func (m *monitor) voting(shard, version uint64, voters map[uint64]string) {
	w := m.of(shard)
	if before, ok := w.voters[version]; ok {
		if !maps.Equal(before, voters) {
			m.c.tb.Errorf("shard %d: voters of version %d are %v and %v", shard, version, before, voters)
		}
		return
	}
	w.voters[version] = maps.Clone(voters)
	if version < w.newest {
		return // a replica that is behind goes through what the others have gone through, or a step that they jumped over
	}
	if before := w.voters[w.newest]; w.newest != 0 && difference(before, voters) > 1 {
		m.c.tb.Errorf("shard %d: voters %v of version %d follow %v of %d", shard, voters, version, before, w.newest)
	}
	w.newest = version
}

// difference counts the ids that are in one of two sets.
func difference(a, b map[uint64]string) (n int) {
	for id := range a {
		if _, ok := b[id]; !ok {
			n++
		}
	}
	for id := range b {
		if _, ok := a[id]; !ok {
			n++
		}
	}
	return n
}

// look checks all shards.
func (m *monitor) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	committed := make(map[uint64]uint64)
	gone := make(map[uint64]bool)
	for _, n := range m.c.all() {
		n.mu.Lock()
		p := n.opened
		n.mu.Unlock()
		if p == nil || !p.enter() {
			continue
		}
		for id := range p.machine.State().Removed {
			gone[id] = true
		}
		for _, r := range p.replicas() {
			w, shard := m.of(r.ShardID()), r.ShardID()
			if term := r.Serving(); term != 0 && !p.dead.Load() {
				m.leads(shard, term, r)
			}
			if version, voters := r.Voters(); len(voters) > 0 {
				m.voting(shard, version, voters)
			}
			index := r.Committed()
			w.holds(r.ReplicaID(), index)
			committed[shard] = max(committed[shard], index)
		}
		p.leave()
	}
	for shard, w := range m.shards {
		w.committed = max(w.committed, committed[shard])
		m.majority(shard, w)
		m.order(shard, w, gone)
	}
}

// order checks that the voters of a shard are those of nodes that are not gone by the record, and have voters of the system shard. m.mu
// must be held.
func (m *monitor) order(shard uint64, w *watched, gone map[uint64]bool) {
	for _, n := range m.c.all() {
		_, votes := w.voters[w.newest][n.replica]
		if votes && gone[n.id] {
			m.c.tb.Errorf("shard %d: replica %d votes, and node %d is gone by the record", shard, n.replica, n.id)
		}
		if votes && m.of(placement.SystemShard).removed[n.replica] {
			m.c.tb.Errorf("shard %d: replica %d votes, and is none of the system shard any more", shard, n.replica)
		}
	}
}

// leads checks a leader that serves. m.mu must be held.
func (m *monitor) leads(shard, term uint64, r *raft.Replica) {
	w := m.of(shard)
	other, known := w.leaders[term]
	switch {
	case known && other != r.ReplicaID():
		m.c.tb.Errorf("shard %d: replicas %d and %d serve in term %d", shard, other, r.ReplicaID(), term)
	case !known:
		w.leaders[term] = r.ReplicaID()
		for later := range w.leaders {
			if later > term {
				return // it may lack what was committed since
			}
		}
		if index := r.Committed(); index < w.committed {
			m.c.tb.Errorf("shard %d: replica %d serves in term %d up to %d, and %d was committed before", shard, r.ReplicaID(), term, index, w.committed)
		}
	}
}

// majority checks the newest voters of a shard. m.mu must be held.
func (m *monitor) majority(shard uint64, w *watched) {
	voters := w.voters[w.newest]
	if len(voters) == 0 {
		return
	}
	there, hold := 0, 0
	for id := range voters {
		if !m.c.lasts(id) {
			continue
		}
		there++
		if w.held[id] >= w.committed {
			hold++
		}
	}
	if there <= len(voters)/2 {
		m.c.tb.Errorf("shard %d: of the voters %v only %d are there", shard, voters, there)
	}
	if there-hold > len(voters)/2 {
		m.c.tb.Errorf("shard %d: of the voters %v %d are there and %d hold all up to %d: %v", shard, voters, there, hold, w.committed, w.held)
	}
}

// lasts reports whether the disks of the replicas of an id are there.
func (c *cluster) lasts(replica uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.replica == replica {
			return !n.lost
		}
	}
	return false
}

// lose ends a node and takes its disks away for good.
func (c *cluster) lose(n *node) error {
	err := n.die(true, c.rnd)
	c.mu.Lock()
	n.lost = true
	c.mu.Unlock()
	return err
}

// settledMembers reports whether the members of each shard are those of the record, as a process knows it, and all vote that are
// to.
func (p *process) settledMembers(ctx context.Context) bool {
	state := p.cluster.State()
	for _, n := range state.Nodes {
		if n.Leaving || n.Instance == "" {
			return false
		}
	}
	for _, r := range p.replicas() {
		m, err := r.Members(ctx)
		if err != nil {
			return false
		}
		wanted := state.Shard(r.ShardID()).Replicas
		if len(m.Voters)+len(m.NonVoting) != len(wanted) {
			return false
		}
		for id, node := range wanted {
			if _, votes := m.Voters[id]; votes == state.Nodes[node].Learner {
				return false
			}
		}
	}
	return true
}

// membersSaid says what all processes know of the members.
func (c *cluster) membersSaid() string {
	var b strings.Builder
	c.mu.Lock()
	strays := slices.Clone(c.strays)
	c.mu.Unlock()
	for _, n := range append(c.all(), strays...) {
		n.mu.Lock()
		p, serves, away := n.opened, n.process != nil, n.sentAway
		n.mu.Unlock()
		fmt.Fprintf(&b, "\nnode %d, replica %d, lost %v, serves %v, sent away %v", n.id, n.replica, n.lost, serves, away)
		if p == nil {
			continue
		}
		state := p.machine.State()
		fmt.Fprintf(&b, "\n  asks %v, was told of %v", p.known(), n.told)
		for _, m := range state.SortedNodes() {
			fmt.Fprintf(&b, "\n  knows %d instance %q leaving %v learner %v", m.ID, m.Instance, m.Leaving, m.Learner)
		}
		fmt.Fprintf(&b, "\n  replicas %v", state.System.Replicas)
		for _, r := range p.replicas() {
			version, voters := r.Voters()
			fmt.Fprintf(&b, "\n  shard %d: leader %+v, serving %d, applied %d, voters of %d: %v", r.ShardID(), r.Leader(), r.Serving(), r.Applied(), version, slices.Sorted(maps.Keys(voters)))
		}
	}
	return b.String()
}
