package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/system"
)

// journalInterval is how often the journal reads who leads the data shards.
const journalInterval = time.Second

// leading is who leads a shard: node is 0 while nobody does.
type leading struct{ node, term uint64 }

// journal logs what happens to the cluster as this node sees it: elections, nodes that
// join, changes of users and roles, alarms. Of several changes between two readings it tells
// what has become of them.
type journal struct {
	log *slog.Logger
	// state returns the system shard's state, and what is closed when it changes.
	state func() (*system.State, <-chan struct{})
	// leader returns who leads the system shard, and what ends when that changes.
	leader func() (leading, context.Context)
	// data returns the nodes that lead the data shards, 0 for none, by shard.
	data func() map[uint64]uint64
	self uint64

	wg     sync.WaitGroup
	cancel context.CancelFunc

	// What was seen last; only run uses it.
	seen    *system.State
	led     leading
	leaders map[uint64]uint64
}

// openJournal returns the node's, which is not started.
func (n *Node) openJournal() *journal {
	return &journal{
		log: n.log, self: n.cluster.MemberID(), state: n.cluster.Changes,
		leader: func() (leading, context.Context) {
			l, until := n.cluster.Replica().LeaderUntil()
			return leading{n.cluster.NodeOf(l.ReplicaID), l.Term}, until
		},
		data: func() map[uint64]uint64 {
			all := n.cluster.State().Shards
			leaders := make(map[uint64]uint64, len(n.shards))
			for id, d := range n.shards {
				leaders[id] = all[id].Replicas[d.Replica().Leader().ReplicaID]
			}
			return leaders
		},
	}
}

func (j *journal) start() {
	var ctx context.Context
	ctx, j.cancel = context.WithCancel(context.Background())
	j.wg.Go(func() { j.run(ctx) })
}

func (j *journal) close() {
	j.cancel()
	j.wg.Wait()
}

func (j *journal) run(ctx context.Context) {
	t := time.NewTicker(journalInterval)
	defer t.Stop()
	for {
		state, changed := j.state()
		led, until := j.leader()
		j.logState(state)
		j.logLeader(led)
		replaced := until.Done()
		if until.Err() != nil {
			replaced = nil // of a replica that has stopped there is no news
		}
		select {
		case <-changed:
		case <-replaced:
		case <-t.C:
			j.logData(j.data())
		case <-ctx.Done():
			state, _ = j.state()
			j.logState(state)
			return
		}
	}
}

// node returns what a log line says of a node; alarms of node 0 are the whole cluster's.
func (j *journal) node(id uint64) slog.Attr {
	if id == 0 {
		return slog.String("node", "all")
	}
	return slog.Group("node", slog.String("name", j.seen.Nodes[id].Name), slog.String("id", fmt.Sprintf("%x", id)))
}

func (j *journal) logLeader(led leading) {
	was := j.led
	j.led = led
	switch {
	case led == was:
	case led.node == 0 && was.node != 0:
		j.log.Warn("leader lost", j.node(was.node), slog.Uint64("term", led.term))
	case led.node != 0:
		j.log.Info("leader elected", j.node(led.node), slog.Uint64("term", led.term), slog.Bool("here", led.node == j.self))
	}
}

// logData compares the leaders of data shards. One that is missed for a moment is not
// told of.
func (j *journal) logData(leaders map[uint64]uint64) {
	was := j.leaders
	j.leaders = maps.Clone(was)
	if was == nil {
		j.leaders = leaders
		return
	}
	var changed []uint64
	here := 0
	for shard, node := range leaders {
		if node != 0 && node != was[shard] {
			changed = append(changed, shard)
			j.leaders[shard] = node
		}
		if node == j.self {
			here++
		}
	}
	if len(changed) > 0 {
		slices.Sort(changed)
		j.log.Info("leaders of data shards changed", slog.Any("shards", changed), slog.Int("led_here", here))
	}
}

func (j *journal) logState(state *system.State) {
	was := j.seen
	j.seen = state
	if was == nil {
		was = &system.State{Nodes: state.Nodes, Removed: state.Removed, Auth: state.Auth} // alarms that stand are told of
	}
	if state == was {
		return
	}
	if v := state.Cluster.Version; v > was.Cluster.Version && was.Cluster.Version > 0 {
		j.log.Info("cluster version raised", slog.Uint64("version", uint64(v)))
	}
	for _, n := range state.SortedNodes() {
		if before, known := was.Nodes[n.ID]; !known {
			j.log.Info("member added", slog.String("node", fmt.Sprintf("%x", n.ID)), slog.Any("peer_urls", n.PeerURLs))
		} else if n.Leaving && !before.Leaving {
			j.log.Info("member is being removed", j.node(n.ID))
		}
		if n.Instance != "" && was.Nodes[n.ID].Instance == "" {
			j.log.Info("node joined", j.node(n.ID), slog.Any("peer_urls", n.PeerURLs))
		}
	}
	for id := range state.Removed {
		if _, known := was.Removed[id]; !known {
			j.log.Info("member removed", slog.String("node", fmt.Sprintf("%x", id)))
		}
	}
	for _, a := range state.Alarms {
		if !slices.Contains(was.Alarms, a) {
			j.log.Warn("alarm raised", slog.String("alarm", a.Type.String()), j.node(a.Member))
		}
	}
	for _, a := range was.Alarms {
		if !slices.Contains(state.Alarms, a) {
			j.log.Info("alarm cleared", slog.String("alarm", a.Type.String()), j.node(a.Member))
		}
	}
	if state.Auth.Enabled != was.Auth.Enabled || state.Auth.Revision != was.Auth.Revision {
		j.logUsers(was.Auth, state.Auth)
	}
}

func (j *journal) logUsers(was, now *auth.State) {
	if now.Enabled != was.Enabled {
		j.log.Info("auth switched", slog.Bool("on", now.Enabled))
	}
	tell(j.log, "user", was.Users, now.Users)
	tell(j.log, "role", was.Roles, now.Roles)
}

const authChanged = "auth changed"

// tell logs which records were added, removed or changed.
func tell[R any](log *slog.Logger, what string, was, now map[string]R) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		record, known := was[name]
		switch {
		case !known:
			log.Info(authChanged, slog.String(what, name), slog.String("change", "added"))
		case !reflect.DeepEqual(record, now[name]):
			log.Info(authChanged, slog.String(what, name), slog.String("change", "changed"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, left := now[name]; !left {
			log.Info(authChanged, slog.String(what, name), slog.String("change", "removed"))
		}
	}
}

// sayStarting logs who starts, before the node meets or waits for others.
func (n *Node) sayStarting(o *Options) error {
	c, id := o.Config, n.dir.Identity()
	attrs := []slog.Attr{
		slog.String("version", config.Version), slog.String("commit", config.Commit()),
		slog.String("name", c.Name), slog.String("id", fmt.Sprintf("%x", id.NodeID)), slog.String("data_dir", c.DataDir),
	}
	if len(id.Nodes) > 1 {
		attrs = append(attrs, slog.Int("nodes", len(id.Nodes)), slog.String("peers_on", c.ListenPeerURLs.String()))
	}
	n.log.LogAttrs(context.Background(), slog.LevelInfo, "starting", attrs...)
	return nil
}

// sayServing logs that clients are served, and where.
func (n *Node) sayServing() {
	var at []string
	for _, a := range n.Addrs() {
		at = append(at, a.String())
	}
	n.log.Info("serving clients", slog.Any("addresses", at), slog.String("id", fmt.Sprintf("%x", n.cluster.MemberID())),
		slog.String("cluster", fmt.Sprintf("%x", n.cluster.ClusterID())), slog.Int("shards", len(n.shards)))
}
