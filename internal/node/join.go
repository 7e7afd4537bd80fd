package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// joinPause lies between two rounds of asking the members of a cluster to let this node join.
const joinPause = time.Second

// admission is what a node is told that may join.
type admission struct {
	// Node is the member that it is, and Replica the id of its replicas.
	Node    uint64 `json:"node,string"`
	Replica uint64 `json:"replica"`
	// Deployment is datadir.Identity's, and Salt what a restored cluster has beside its token.
	Deployment uint64 `json:"deployment,string"`
	Salt       string `json:"salt,omitempty"`
	// Nodes are the members.
	Nodes []datadir.Member `json:"nodes"`
}

// joinCluster asks the nodes of --initial-cluster, in turn, to let this one join, until one does or says that it never
// will. instance is that of the node's data directory.
func (n *Node) joinCluster(ctx context.Context, o *Options, instance string) (datadir.Identity, error) {
	c := o.Config
	self := sortedURLs(c.InitialCluster[c.Name])
	j := peer.Joining{PeerURLs: self, Instance: instance, Version: system.Version}
	for _, m := range firstNodes(c) {
		j.Members = append(j.Members, m.PeerURLs)
	}
	info, err := peerTLS(o)
	if err != nil {
		return datadir.Identity{}, err
	}
	mesh := peer.Config{
		Secret: []byte(peerSecret(c.ClusterToken, "")), TLS: info.ClientConfig, Log: n.log,
		Timeout: silentElections * c.ElectionTimeout, MaxFrame: maxPeerFrame(c),
	}
	said := ""
	for {
		for _, m := range firstNodes(c) {
			if slices.Equal(m.PeerURLs, self) {
				continue
			}
			told, err := peer.Join(ctx, mesh, m.PeerURLs, j)
			var a admission
			if err == nil {
				err = json.Unmarshal(told, &a)
			}
			if err == nil {
				return a.identity(c), nil
			}
			var refused *peer.RefusedError
			switch {
			case ctx.Err() != nil:
				return datadir.Identity{}, context.Cause(ctx)
			case errors.As(err, &refused) && refused.Kind != peer.RefusedOther:
				return datadir.Identity{}, fmt.Errorf("%w: %w", ErrRefused, err)
			case err.Error() != said:
				said = err.Error()
				n.log.Warn("waiting for a member of the cluster to let this node join", slog.String("asked", m.Name), slog.String("error", said))
			}
		}
		t := time.NewTimer(joinPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return datadir.Identity{}, context.Cause(ctx)
		}
	}
}

// identity returns that of the node that was admitted.
func (a admission) identity(c *config.Config) datadir.Identity {
	return datadir.Identity{
		NodeID: a.Node, Replica: a.Replica, DeploymentID: a.Deployment,
		PeerSecret: peerSecret(c.ClusterToken, a.Salt), JoinSecret: joinSecret(c.ClusterToken, a.Salt), Salt: a.Salt,
		Nodes: a.Nodes, LogShards: defaultLogShards(),
	}
}

// admitNew has another node join, which a member was added for. An error that wraps peer.ErrBarred says that it never will as it
// is.
func (n *Node) admitNew(ctx context.Context, j peer.Joining) ([]byte, error) {
	cluster := n.admitting.Load()
	if cluster == nil {
		return nil, errNotYet
	}
	if _, err := cluster.Members(ctx, true); err != nil {
		return nil, err
	}
	if err := sameMembers(cluster.State(), j); err != nil {
		return nil, fmt.Errorf("%w: %w", peer.ErrBarred, err)
	}
	err := cluster.JoinMember(ctx, j.PeerURLs, j.Instance, j.Version)
	for _, never := range []error{system.ErrNotMember, system.ErrFirstMember, system.ErrOldProgram, system.ErrVersion} {
		if errors.Is(err, never) {
			return nil, fmt.Errorf("%w: %w", peer.ErrBarred, err)
		}
	}
	if errors.Is(err, system.ErrInstance) {
		return nil, fmt.Errorf("%w: %s", peer.ErrBarred, returned)
	}
	if err != nil {
		return nil, err
	}
	id := n.dir.Identity()
	a := admission{Deployment: id.DeploymentID, Salt: id.Salt}
	state := cluster.State()
	for _, m := range state.SortedNodes() {
		a.Nodes = append(a.Nodes, datadir.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs})
		if slices.Equal(m.PeerURLs, j.PeerURLs) {
			a.Node, a.Replica = m.ID, state.ReplicaOf(placement.SystemShard, m.ID)
		}
	}
	return json.Marshal(a)
}

// errNotYet is returned where the system shard does not run yet.
var errNotYet = errors.New("this node is starting")

// sameMembers compares what a node was told of the members with those that there are, as etcd does: peer URLs that differ may
// belong to another cluster.
func sameMembers(state *system.State, j peer.Joining) error {
	if len(j.Members) != len(state.Nodes) {
		return fmt.Errorf("%w: member count is unequal: %d in its --initial-cluster, %d in the cluster; it names all members, "+
			"and the member is added first (etcdctl member add)", errMembersDiffer, len(j.Members), len(state.Nodes))
	}
	for _, m := range state.SortedNodes() {
		if !slices.ContainsFunc(j.Members, func(urls []string) bool { return slices.Equal(urls, m.PeerURLs) }) {
			return fmt.Errorf("%w: its --initial-cluster does not name the member at %v", errMembersDiffer, m.PeerURLs)
		}
	}
	return nil
}

// errMembersDiffer has etcd's text.
var errMembersDiffer = errors.New("error validating peerURLs")
