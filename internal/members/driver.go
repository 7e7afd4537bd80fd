package members

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// interval lies between two looks at what is to be done.
const interval = 100 * time.Millisecond

// Group is one of this node's replicas, *raft.Replica.
type Group interface {
	ShardID() uint64
	ReplicaID() uint64
	Serving() uint64
	Applied() uint64
	Follows(replicaID uint64) (match uint64, ok bool)
	Resend(replicaID uint64)
	CutLog(ctx context.Context) error
	Steps
}

// Steps are the members of a replica's shard and changes of them.
type Steps interface {
	Members(ctx context.Context) (raft.Members, error)
	AddNonVoting(ctx context.Context, replicaID uint64, host string, version uint64) error
	Promote(ctx context.Context, replicaID uint64, host string, version uint64) error
	RemoveMember(ctx context.Context, replicaID, version uint64) error
}

// Record is what the system shard says, *system.Cluster.
type Record interface {
	State() *system.State
	MemberGone(ctx context.Context, node uint64) error
}

// Config says what a Driver drives.
type Config struct {
	// Record is the record of the members, as this node knows it.
	Record Record
	// Groups returns this node's replicas, that of the system shard among them.
	Groups func() []Group
	// Host returns the NodeHostID of the host that has a node's replica of a shard.
	Host func(shardID, node uint64) string
	// Applied asks another node how far its replica of a shard has applied. It returns soon, whatever becomes of that node.
	Applied func(ctx context.Context, node, shardID uint64) (uint64, error)
	// Log receives what operators should see.
	Log *slog.Logger
}

// Driver makes the steps of membership of the shards that this node leads.
type Driver struct {
	c    Config
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	// settled says of shards when nothing was left to do; protected by mu.
	settled map[uint64]settled
}

// settled is a moment at which nothing was left to do for a shard.
type settled struct {
	// term is that of this node's leadership, and version that of the members.
	term, version uint64
	// followers are the replicas that have no vote.
	followers []uint64
}

// Start drives until Close.
func Start(c Config) *Driver {
	d := &Driver{c: c, settled: make(map[uint64]settled)}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	d.wg.Go(func() { d.run(ctx) })
	return d
}

// Close ends that.
func (d *Driver) Close() {
	d.stop()
	d.wg.Wait()
}

func (d *Driver) run(ctx context.Context) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var shards sync.WaitGroup
		for _, g := range d.c.Groups() {
			if term := g.Serving(); term != 0 {
				shards.Go(func() { d.drive(ctx, g, term) })
			}
		}
		shards.Wait()
	}
}

// drive makes the next step of a shard, if there is one.
func (d *Driver) drive(ctx context.Context, g Group, term uint64) {
	state := d.c.Record.State()
	d.mu.Lock()
	last := d.settled[g.ShardID()]
	d.mu.Unlock()
	if last.term == term && last.version == state.Cluster.Members {
		resend(g, last.followers)
		return
	}
	if !state.ChangesMembers() {
		return
	}
	have, err := g.Members(ctx)
	if err != nil {
		return // asked again soon
	}
	followers := slices.Sorted(maps.Keys(have.NonVoting))
	resend(g, followers)
	p := plan{
		wanted: d.wanted(state, g.ShardID()), have: have, self: g.ReplicaID(),
		live: func(replica uint64) bool { return d.live(ctx, state, g, replica) },
	}
	s, done := p.next()
	system := g.ShardID() == placement.SystemShard
	switch {
	case system && s.do == remove && !d.hasNoData(ctx, state, state.System.Replicas[s.replica]):
		// The system shard comes last: a node hears from it what becomes of itself.
	case s.do != nothing:
		d.make(ctx, g, s, p.wanted[s.replica].host, have.Version)
	case len(have.NonVoting) > 0 && g.CutLog(ctx) != nil:
		// Tried again: this leader may have to send its log to one that joined, which must not get it from the beginning.
	case done && (!system || d.tellGone(ctx, state)):
		d.mu.Lock()
		d.settled[g.ShardID()] = settled{term, state.Cluster.Members, followers}
		d.mu.Unlock()
	}
}

// resend has a shard's leader send again to those without a vote that it does not hear of.
func resend(g Group, followers []uint64) {
	for _, id := range followers {
		if _, ok := g.Follows(id); !ok {
			g.Resend(id)
		}
	}
}

// wanted returns what the record asks of a shard's replicas.
func (d *Driver) wanted(state *system.State, shardID uint64) map[uint64]want {
	wanted := make(map[uint64]want)
	for id, node := range state.Shard(shardID).Replicas {
		n := state.Nodes[node]
		wanted[id] = want{host: d.c.Host(shardID, node), votes: !n.Learner, leaving: n.Leaving}
	}
	return wanted
}

// live reports whether a replica has caught up, over Raft and by what its node says.
func (d *Driver) live(ctx context.Context, state *system.State, g Group, replica uint64) bool {
	return raft.Live(ctx, g, replica, func(ctx context.Context) (uint64, error) {
		return d.c.Applied(ctx, state.Shard(g.ShardID()).Replicas[replica], g.ShardID())
	})
}

// hasNoData reports whether each data shard has let go of its replica on a node, and so none will have one again.
func (d *Driver) hasNoData(ctx context.Context, state *system.State, node uint64) bool {
	for _, g := range d.c.Groups() {
		if g.ShardID() == placement.SystemShard {
			continue
		}
		have, err := g.Members(ctx)
		if err != nil {
			return false
		}
		if _, removed := have.Removed[state.ReplicaOf(g.ShardID(), node)]; !removed {
			return false
		}
	}
	return true
}

// tellGone has the record say that the nodes that are leaving have no replicas any more, and reports whether there are
// none.
func (d *Driver) tellGone(ctx context.Context, state *system.State) bool {
	none := true
	for _, n := range state.Nodes {
		if !n.Leaving {
			continue
		}
		none = false
		if d.hasNoData(ctx, state, n.ID) {
			if err := d.c.Record.MemberGone(ctx, n.ID); err != nil {
				d.c.Log.Debug("member could not be taken out of the record", slog.Any("error", err))
			}
		}
	}
	return none
}

// make makes one step.
func (d *Driver) make(ctx context.Context, g Group, s step, host string, version uint64) {
	var err error
	switch s.do {
	case add:
		// One that joins begins with a snapshot, which Raft sends only of what is not in the log.
		if err = g.CutLog(ctx); err == nil {
			err = g.AddNonVoting(ctx, s.replica, host, version)
		}
	case promote:
		err = g.Promote(ctx, s.replica, host, version)
	case remove:
		err = g.RemoveMember(ctx, s.replica, version)
	case nothing:
	}
	log := d.c.Log.With(slog.Uint64("shard", g.ShardID()), slog.String("step", s.do.String()), slog.Uint64("replica", s.replica))
	if err != nil {
		log.Debug("members were not changed; it is tried again", slog.Any("error", err))
		return
	}
	log.Info("members changed")
}
