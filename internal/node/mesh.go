package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/leadership"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// ErrRefused is returned for a node that the others do not let in.
var ErrRefused = errors.New("the cluster refuses this node")

// returned says what to do about a node that was a member with another data directory.
const returned = "it was a member with another data directory; bring the directory back: removing and adding members is not available yet, and the others go on without this node"

// firstNodes returns the cluster's first nodes by id, as the flags have them.
func firstNodes(c *config.Config) []datadir.Member {
	nodes := make([]datadir.Member, 0, len(c.InitialCluster))
	for name, urls := range c.InitialCluster {
		u := sortedURLs(urls)
		nodes = append(nodes, datadir.Member{ID: memberID(u, c.ClusterToken), Name: name, PeerURLs: u})
	}
	slices.SortFunc(nodes, func(a, b datadir.Member) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// membership is what a node knows of the cluster's nodes, and who may talk to it.
type membership struct {
	self uint64
	// first are the cluster's first nodes by id. The place of a node, from 1, is the id of
	// its replicas.
	first []datadir.Member
	// system is the system shard's state on this node.
	system *system.Machine

	mu sync.Mutex
	// refusals holds the nodes of which this one is no part of the cluster; protected by
	// mu.
	refusals map[uint64]bool
}

// replicaOf returns the id of a first node's replicas, 0 for another node.
func replicaOf(first []datadir.Member, node uint64) uint64 {
	return uint64(slices.IndexFunc(first, func(m datadir.Member) bool { return m.ID == node }) + 1)
}

// members returns the first nodes by the ids of their replicas.
func (r *membership) members() map[uint64]uint64 {
	members := make(map[uint64]uint64, len(r.first))
	for i, m := range r.first {
		members[uint64(i)+1] = m.ID
	}
	return members
}

// nodes returns the first nodes' ids, in the order of those of their replicas.
func (r *membership) nodes() []uint64 {
	nodes := make([]uint64, 0, len(r.first))
	for _, m := range r.first {
		nodes = append(nodes, m.ID)
	}
	return nodes
}

// hosts returns the NodeHostIDs of the hosts of a name by node.
func (r *membership) hosts(name string) map[uint64]string {
	hosts := make(map[uint64]string, len(r.first))
	for _, m := range r.first {
		hosts[m.ID] = nodeHostID(name, m.ID)
	}
	return hosts
}

// urls returns where a node is reached: where the cluster says, and before there is one
// where the flags say.
func (r *membership) urls(node uint64) []string {
	if known, ok := r.system.State().Nodes[node]; ok {
		return known.PeerURLs
	}
	if at := replicaOf(r.first, node); at > 0 {
		return r.first[at-1].PeerURLs
	}
	return nil
}

// admit judges another node. A node that was announced with another data directory is
// turned away for good: it may have voted, and does not know it any more.
func (r *membership) admit(h peer.Hello) error {
	state := r.system.State()
	known, ok := state.Nodes[h.Node]
	if !ok && (state.Cluster.ID != 0 || replicaOf(r.first, h.Node) == 0) {
		return fmt.Errorf("node %x is no member of the cluster", h.Node)
	}
	if known.Instance != "" && known.Instance != h.Instance {
		return fmt.Errorf("%w: %s", peer.ErrBarred, returned)
	}
	return nil
}

// refused notes that another node does not let this one in, and returns an error if there
// is no hope: it says so for good, or so many take this node for one of another cluster
// that the rest is no quorum. A node that knows its cluster knows its secret: there, who can't
// prove to know it too is somebody else at another node's address.
func (r *membership) refused(e *peer.RefusedError) error {
	if !e.Proved && r.system.State().Cluster.ID != 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == peer.RefusedCluster {
		r.refusals[e.Node] = true
	} else {
		delete(r.refusals, e.Node)
	}
	if e.Kind == peer.RefusedBarred || len(r.first)-len(r.refusals) <= len(r.first)/2 {
		return fmt.Errorf("%w: %w", ErrRefused, e)
	}
	return nil
}

// silentElections is how many election timeouts another node may be silent before streams to it are
// given up, with the calls on them. With the default flags that is etcd's five seconds: a link may
// be held up for longer than an election, and lose nothing. Who leads does not hang on it.
const silentElections = 5

// maxPeerFrame bounds a message between nodes: what Raft sends at a time, and requests.
func maxPeerFrame(c *config.Config) int {
	return int(min(128<<20+4*int64(c.MaxRequestBytes), math.MaxInt32))
}

// openMesh connects the node to the others, and is there for those that come.
func (n *Node) openMesh(o *Options) error {
	id := n.dir.Identity()
	first := id.Nodes
	if len(first) == 0 {
		first = []datadir.Member{{ID: id.NodeID, Name: o.Config.Name, PeerURLs: sortedURLs(o.Config.AdvertisePeerURLs)}}
	}
	machine, err := system.Open(n.state, raft.Prefix(placement.SystemShard, replicaOf(first, id.NodeID)))
	if err != nil {
		return err
	}
	n.membership = &membership{self: id.NodeID, first: first, system: machine, refusals: make(map[uint64]bool)}
	info, err := peerTLS(o)
	if err != nil {
		return err
	}
	p := &peers{node: n}
	p.succession = leadership.NewSuccession(id.NodeID, n.membership.nodes(), o.Config.HeartbeatInterval, o.Config.ElectionTimeout,
		func(ctx context.Context, node, missing uint64) (bool, error) {
			return remote.Missed(ctx, p.mesh, node, missing)
		})
	p.mesh = peer.New(peer.Config{
		Secret: []byte(id.PeerSecret), Node: id.NodeID, Instance: id.Instance,
		ClusterID: func() uint64 { return machine.State().Cluster.ID },
		URLs:      n.membership.urls, Admit: n.membership.admit,
		Refused: func(e *peer.RefusedError) {
			if err := n.membership.refused(e); err != nil {
				n.fail(err)
			}
		},
		Gone:    p.succession.Lost,
		TLS:     info.ClientConfig,
		Traffic: newTraffic(n.metrics.registry),
		Timeout: silentElections * o.Config.ElectionTimeout, MaxFrame: maxPeerFrame(o.Config), Log: n.log,
	})
	n.peers = p
	for _, l := range n.peerListeners {
		var secure func(net.Listener) (net.Listener, error)
		if l.secure {
			secure = func(l net.Listener) (net.Listener, error) { return transport.NewTLSListener(l, &info) }
		}
		if err := p.mesh.Serve(l, secure); err != nil {
			return fmt.Errorf("read certificates for other nodes: %w", err)
		}
	}
	for _, m := range first {
		p.mesh.Reach(m.ID)
	}
	return nil
}

// peerTLS returns the settings of TLS between nodes.
func peerTLS(o *Options) (transport.TLSInfo, error) {
	t := &o.Config.PeerTLS
	var hosts []string
	for _, u := range o.Config.ListenPeerURLs {
		hosts = append(hosts, u.Host)
	}
	info, err := tlsInfo(t, filepath.Join(o.Config.DataDir, "fixtures", "peer"), hosts, o.Log)
	if err == nil && t.CRLFile != "" {
		err = checkRevocations(t.CRLFile)
	}
	// Certificates that nodes make for themselves are signed by nobody.
	info.InsecureSkipVerify = t.Auto && t.CertFile == ""
	return info, err
}

// listenPeers opens the listeners for other nodes.
func listenPeers(c *config.Config) ([]listener, error) {
	var listeners []listener
	for _, u := range c.ListenPeerURLs {
		l, err := listenOn(c, u)
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, fmt.Errorf("%w for other nodes on %s, of --listen-peer-urls: %w", ErrListen, u.String(), err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// unreached names the nodes that this one has no connection to.
func (n *Node) unreached() []string {
	var names []string
	for _, m := range n.membership.first {
		if m.ID != n.membership.self && !n.peers.reached(m.ID) {
			names = append(names, m.Name)
		}
	}
	return names
}

// wire is a mesh's wire as a host wants it, which calls hosts by NodeHostIDs.
type wire struct {
	*peer.Wire
	// hosts are the NodeHostIDs by node, and nodes the other way round.
	hosts map[uint64]string
	nodes map[string]uint64
	// heard is told which node a message came from.
	heard func(node uint64)
	// stuck says whether this node's disk hangs.
	stuck func() bool
}

var _ raft.Wire = (*wire)(nil)

func newWire(w *peer.Wire, hosts map[uint64]string, heard func(node uint64), stuck func() bool) *wire {
	nodes := make(map[string]uint64, len(hosts))
	for node, host := range hosts {
		nodes[host] = node
	}
	return &wire{Wire: w, hosts: hosts, nodes: nodes, heard: heard, stuck: stuck}
}

// Listen hands over what comes.
func (w *wire) Listen(message func(from string, frame []byte), chunk func(from string, frame []byte) bool) {
	w.Wire.Listen(
		func(from uint64, frame []byte) {
			w.heard(from)
			message(w.hosts[from], frame)
		},
		func(from uint64, frame []byte) bool { return chunk(w.hosts[from], frame) },
	)
}

// Connect opens a stream of messages.
func (w *wire) Connect(ctx context.Context, host string) (raft.WireConn, error) {
	s, err := w.Wire.Connect(ctx, w.nodes[host])
	if err != nil {
		return nil, err
	}
	return quietConn{s, w.stuck}, nil
}

// quietConn says nothing while this node's disk hangs, so that others are elected for all
// that it leads. A shard that had nothing to write would be led on, and not be served.
type quietConn struct {
	raft.WireConn

	stuck func() bool
}

// Send sends a frame, or drops it.
func (c quietConn) Send(frame []byte) error {
	if c.stuck() {
		return nil
	}
	return c.WireConn.Send(frame)
}

// ConnectSnapshot opens a stream for a snapshot.
func (w *wire) ConnectSnapshot(ctx context.Context, host string) (raft.WireConn, error) {
	s, err := w.Wire.ConnectSnapshot(ctx, w.nodes[host])
	if err != nil {
		return nil, err
	}
	return s, nil
}

// nodesChanged is returned for a node that is to make another cluster than the one that
// its directory was made for.
func nodesChanged(path string, made, now []datadir.Member) error {
	same := slices.EqualFunc(made, now, func(a, b datadir.Member) bool { return a.ID == b.ID })
	if same {
		return nil
	}
	names := func(all []datadir.Member) []string {
		var s []string
		for _, m := range all {
			s = append(s, m.Name+"="+fmt.Sprint(m.PeerURLs))
		}
		return s
	}
	return fmt.Errorf("%w: %s was made for %v, and now there are to be %v, or another --initial-cluster-token; "+
		"the cluster has not been made yet: start with the first flags, or with an empty directory", errOtherNodes, path, names(made), names(now))
}

var errOtherNodes = errors.New("--initial-cluster changed")
