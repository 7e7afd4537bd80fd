package node

import (
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
	n.membership = newMembership(id, datadir.Member{ID: id.NodeID, Name: o.Config.Name, PeerURLs: sortedURLs(o.Config.AdvertisePeerURLs)})
	machine, err := system.Open(n.state, raft.Prefix(placement.SystemShard, n.membership.replica))
	if err != nil {
		return err
	}
	n.membership.system = machine
	info, err := peerTLS(o)
	if err != nil {
		return err
	}
	p := &peers{node: n}
	p.succession = leadership.NewSuccession(id.NodeID, n.membership, o.Config.HeartbeatInterval, o.Config.ElectionTimeout,
		func(ctx context.Context, node, missing uint64) (bool, error) {
			return remote.Missed(ctx, p.mesh, node, missing)
		})
	p.mesh = peer.New(peer.Config{
		Secret: []byte(id.PeerSecret), JoinSecret: secretOf(id.JoinSecret), Node: id.NodeID, Instance: id.Instance,
		ClusterID:  func() uint64 { return machine.State().Cluster.ID },
		Membership: n.membership.says, URLs: n.membership.urls, Admit: n.membership.admit, Join: n.admitNew,
		Refused: func(e *peer.RefusedError) {
			err := n.membership.refused(e)
			if errors.Is(err, peer.ErrRemoved) {
				n.removed.Store(true)
			}
			if err != nil {
				n.fail(err)
			}
		},
		Gone: p.succession.Lost, Unhurried: remote.Unhurried,
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
	for _, id := range n.membership.nodes() {
		p.mesh.Reach(id)
	}
	return nil
}

// secretOf returns a secret of a data directory, nil for none.
func secretOf(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
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
	for _, id := range n.membership.nodes() {
		if id != n.membership.self && !n.peers.reached(id) {
			names = append(names, n.membership.name(id))
		}
	}
	return names
}

// wire is a mesh's wire as a host wants it, which calls hosts by NodeHostIDs.
type wire struct {
	*peer.Wire
	// hosts are the hosts of the wire's name.
	hosts *hosts
	// heard is told which node a message came from.
	heard func(node uint64)
	// stuck says whether this node's disk hangs.
	stuck func() bool
}

var _ raft.Wire = (*wire)(nil)

func newWire(w *peer.Wire, h *hosts, heard func(node uint64), stuck func() bool) *wire {
	return &wire{Wire: w, hosts: h, heard: heard, stuck: stuck}
}

// hosts names the hosts of one name, which follow from their nodes.
type hosts struct {
	name string
	// known are the NodeHostIDs that were asked for, by node.
	known sync.Map
	// nodes returns the members.
	nodes func() []uint64
}

// of returns the NodeHostID of a node's host.
func (h *hosts) of(node uint64) string {
	known, ok := h.known.Load(node)
	if !ok {
		known, _ = h.known.LoadOrStore(node, nodeHostID(h.name, node))
	}
	id, _ := known.(string)
	return id
}

// node returns the member that a host is of, 0 for none.
func (h *hosts) node(id string) uint64 {
	for _, node := range h.nodes() {
		if h.of(node) == id {
			return node
		}
	}
	return 0
}

// Listen hands over what comes.
func (w *wire) Listen(message func(from string, frame []byte), chunk func(from string, frame []byte) bool) {
	w.Wire.Listen(
		func(from uint64, frame []byte) {
			w.heard(from)
			message(w.hosts.of(from), frame)
		},
		func(from uint64, frame []byte) bool { return chunk(w.hosts.of(from), frame) },
	)
}

// Connect opens a stream of messages.
func (w *wire) Connect(ctx context.Context, host string) (raft.WireConn, error) {
	s, err := w.Wire.Connect(ctx, w.hosts.node(host))
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
	s, err := w.Wire.ConnectSnapshot(ctx, w.hosts.node(host))
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
