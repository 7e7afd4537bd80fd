package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/freeport"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/system"
)

// machine is what a node of a cluster runs on.
type machine struct {
	name  string
	peers string // the address for other nodes
	flags []string
	state *vfs.MemFS
	raft  *raftvfs.MemFS
	node  *Node
}

// cluster is a cluster of several nodes in this process.
type cluster struct {
	// lax judges changes of the members as with --strict-reconfig-check=false.
	lax      bool
	t        *testing.T
	machines []*machine
}

// newCluster makes ready a cluster of nodes that are started with these flags beside
// those that they need.
func newCluster(t *testing.T, size int, flags ...string) *cluster {
	t.Helper()
	c := &cluster{t: t}
	addrs, err := freeport.Addrs(size)
	check(t, err)
	var all []string
	for i, addr := range addrs {
		m := &machine{name: fmt.Sprint("n", i), peers: addr}
		m.wipe()
		c.machines = append(c.machines, m)
		all = append(all, m.name+"=http://"+m.peers)
	}
	for _, m := range c.machines {
		m.flags = append([]string{
			"--name", m.name, "--data-dir", "/" + m.name, "--initial-cluster", strings.Join(all, ","), "--heartbeat-interval", "50",
			"--election-timeout", "500", "--listen-peer-urls", "http://" + m.peers, "--initial-advertise-peer-urls", "http://" + m.peers,
		}, flags...)
	}
	t.Cleanup(func() { c.stop(c.machines...) })
	return c
}

// wipe gives the machine empty disks.
func (m *machine) wipe() { m.state, m.raft = vfs.NewMem(), raftvfs.NewMem() }

// launch starts a node with further flags and returns when it serves.
func (m *machine) launch(stop <-chan struct{}, flags ...string) error {
	return m.launchOn("127.0.0.1:0", stop, flags...)
}

// launchOn is launch with an address for clients.
func (m *machine) launchOn(address string, stop <-chan struct{}, flags ...string) error {
	cfg, err := config.Parse(append(m.flags[:len(m.flags):len(m.flags)], flags...), nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	n, err := Start(Options{
		Config: cfg, StateFS: m.state, RaftFS: m.raft, Listeners: []net.Listener{l}, Stop: stop,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With(slog.String("name", m.name)),
	})
	if err == nil {
		m.node = n
	}
	return err
}

// start starts nodes side by side.
func (c *cluster) start(machines ...*machine) {
	c.t.Helper()
	errs := make([]error, len(machines))
	var starting sync.WaitGroup
	for i, m := range machines {
		starting.Go(func() { errs[i] = m.launch(nil) })
	}
	starting.Wait()
	check(c.t, errors.Join(errs...))
}

// stop stops nodes one after the other.
func (c *cluster) stop(machines ...*machine) {
	c.t.Helper()
	for _, m := range machines {
		if m.node == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := m.node.Stop(ctx); err != nil {
			c.t.Error(err)
		}
		cancel()
		m.node = nil
	}
}

// until calls fn until it reports success.
func until(t *testing.T, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !fn(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// leader returns the node that leads the shard of a key.
func (c *cluster) leader(key string) (leader *Node) {
	c.t.Helper()
	until(c.t, "a leader", func() bool {
		for _, m := range c.machines {
			if m.node == nil {
				continue
			}
			for _, piece := range m.node.cluster.State().Map.Locate(keys.Position([]byte(key)), keys.Position([]byte(key+"\x00"))) {
				if m.node.shards[piece.Shard].Replica().Serving() != 0 {
					leader = m.node
				}
			}
		}
		return leader != nil
	})
	return leader
}

// put writes a key at its leader, and returns when all nodes that run hold it.
func (c *cluster) put(key, value string) {
	c.t.Helper()
	until(c.t, "a write", func() bool {
		_, err := c.leader(key).router.Put(c.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
		return err == nil
	})
	c.holds(key, value)
}

// holds returns when the replicas of all nodes that run hold a value.
func (c *cluster) holds(key, value string) {
	c.t.Helper()
	for _, m := range c.machines {
		if m.node == nil {
			continue
		}
		until(c.t, fmt.Sprintf("%s to hold %s = %s", m.name, key, value), func() bool {
			for _, d := range m.node.shards {
				v := d.Store().View()
				resp, err := v.Range(c.t.Context(), &pb.RangeRequest{Key: []byte(key)})
				v.Close()
				if err == nil && len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == value {
					return true
				}
			}
			return false
		})
	}
}

// measures returns when, taken together, the nodes that run have measured what is named.
func (c *cluster) measures(names []string) {
	c.t.Helper()
	until(c.t, fmt.Sprint("measures of ", names), func() bool {
		sums := make(map[string]float64)
		for _, m := range c.machines {
			for name, value := range measured(c.t, m.node) {
				sums[name] += value
			}
		}
		return !slices.ContainsFunc(names, func(name string) bool { return sums[name] == 0 })
	})
}

// What a node has shown to serializable reads it shows from the first one after a power cut on,
// though its state has lost it.
func TestSerializableReadsAfterPowerCut(t *testing.T) {
	c := newCluster(t, 3)
	m := c.machines[2]
	m.state = vfs.NewCrashableMem()
	c.start(c.machines...)
	read := &pb.RangeRequest{Key: []byte("k"), Serializable: true}
	state := m.state.CrashClone(vfs.CrashCloneCfg{})
	var writers sync.WaitGroup
	for range 64 {
		writers.Go(func() {
			for range 50 {
				if _, err := c.leader("k").router.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 4096)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	c.put("k", "last")
	shown, err := m.node.router.Range(t.Context(), read)
	check(t, err)
	c.stop(m)
	m.state = state
	c.start(m)
	again, err := m.node.router.Range(t.Context(), read)
	check(t, err)
	if again.Header.Revision < shown.Header.Revision || again.Kvs[0].ModRevision < shown.Kvs[0].ModRevision {
		t.Errorf("revision %d was shown, and then %d", shown.Header.Revision, again.Header.Revision)
	}
}

// reaches waits until the nodes that run reach so many others, taken together.
func (c *cluster) reaches(others float64) {
	c.t.Helper()
	until(c.t, fmt.Sprint("nodes that reach ", others, " others"), func() bool {
		var sum float64
		for _, m := range c.machines {
			if m.node != nil {
				sum += measured(c.t, m.node)["etcd_network_active_peers"]
			}
		}
		return sum == others
	})
}

func TestThreeNodes(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, splits := range []string{"", "g,n"} {
		t.Run("splits="+splits, func(t *testing.T) {
			c := newCluster(t, 3, "--initial-splits", splits)
			c.start(c.machines...)
			c.put("a", "1")
			c.put("m", "1")
			id := c.machines[0].node.cluster.ClusterID()
			for _, m := range c.machines {
				members, err := m.node.cluster.Members(t.Context(), true)
				check(t, err)
				if got := m.node.cluster.ClusterID(); got != id || len(members) != 3 {
					t.Errorf("%s is in cluster %x with %d members, not %x", m.name, got, len(members), id)
				}
				for _, other := range members {
					if len(other.ClientURLs) == 0 {
						t.Errorf("%s does not know the client URLs of %s", m.name, other.Name)
					}
				}
				// The system shard is led elsewhere for two of the nodes.
				if _, err := m.node.cluster.RaiseAlarm(t.Context(), 7, pb.AlarmType_NOSPACE); err != nil {
					t.Errorf("%s can't raise an alarm: %v", m.name, err)
				}
				found, err := m.node.cluster.ClearAlarm(t.Context(), 7, pb.AlarmType_NOSPACE)
				if err != nil || len(found) != 1 {
					t.Errorf("%s clears %v, %v", m.name, found, err)
				}
			}
			_, between, _ := listed(t)
			for _, m := range c.machines {
				c.stop(m)
				c.put("a", "without "+m.name)
				c.put("m", "without "+m.name)
				c.reaches(2)
				c.start(m)
				c.reaches(6)
				c.holds("a", "without "+m.name)
				c.measures(between)
			}
			c.stop(c.machines...)
			c.start(c.machines...)
			c.holds("m", "without n2")
			c.put("a", "2")
		})
	}
}

// A node that waits for others ends at once when it is told to.
func TestWaitingNodeStops(t *testing.T) {
	c := newCluster(t, 3)
	stop := make(chan struct{})
	ended := make(chan error)
	go func() { ended <- c.machines[0].launch(stop) }()
	select {
	case err := <-ended:
		t.Fatalf("a node without a quorum ended: %v", err)
	case <-time.After(time.Second):
	}
	close(stop)
	if err := <-ended; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}

func TestNodesThatDoNotBelong(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3, "--initial-splits", "g")
	odd := c.machines[2]
	refused := make(chan error)
	go func() { refused <- odd.launch(nil, "--initial-cluster-token", "other") }()
	c.start(c.machines[:2]...)
	expect := func(err error, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want it to say %q", err, text)
			}
		}
	}
	expect(<-refused, "refuses this node", "another --initial-cluster-token")
	expect(odd.launch(nil), "--initial-cluster changed", "with an empty directory")
	odd.wipe()
	expect(odd.launch(nil, "--initial-cluster-state", "existing"), "refuses this node", "has never started")
	expect(odd.launch(nil, "--initial-splits", "h"), "made with other splits")
	c.start(odd)
	c.stop(odd)
	odd.wipe()
	expect(odd.launch(nil), "refuses this node", "another data directory", "bring the directory back")
	c.put("k", "v")
}

// Once a node knows its cluster, nobody who proves nothing can have it stop.
func TestStrangersStopNobody(t *testing.T) {
	first := []datadir.Member{{ID: 1}, {ID: 2}, {ID: 3}}
	c := newCluster(t, 1)
	c.start(c.machines...)
	n := c.machines[0].node
	empty, err := system.Open(n.state, []byte("another prefix"))
	check(t, err)
	for _, clustered := range []bool{false, true} {
		machine := empty
		if clustered {
			machine = n.membership.system
		}
		r := &membership{self: 1, first: first, system: machine, refusals: make(map[uint64]bool)}
		var err error
		for _, node := range []uint64{2, 3} {
			err = r.refused(&peer.RefusedError{Node: node, Kind: peer.RefusedCluster})
		}
		if (err != nil) == clustered {
			t.Errorf("with a cluster (%v): %v", clustered, err)
		}
		if err := r.refused(&peer.RefusedError{Node: 2, Kind: peer.RefusedBarred, Proved: true}); !errors.Is(err, ErrRefused) {
			t.Errorf("barred by a node of the cluster: %v", err)
		}
	}
}

// secured makes the nodes speak TLS to each other, each with the flags that fn returns.
func (c *cluster) secured(fn func(m *machine) []string) {
	for _, m := range c.machines {
		for i, f := range m.flags {
			m.flags[i] = strings.ReplaceAll(f, "http://", "https://")
		}
		m.flags = append(m.flags, fn(m)...)
	}
}

func TestNodesOverTLS(t *testing.T) {
	t.Parallel() // most of the time it waits
	dir := t.TempDir()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", ca.cert.Raw)
	c := newCluster(t, 3)
	c.secured(func(m *machine) []string {
		pair := filepath.Join(dir, m.name)
		writePair(t, pair, ca.issue(m.name, 2*time.Hour))
		return []string{
			"--peer-cert-file", pair + ".pem", "--peer-key-file", pair + ".key", "--peer-trusted-ca-file", filepath.Join(dir, "ca.pem"),
			"--peer-client-cert-auth", "--peer-cert-allowed-cn", "n0,n1,n2",
		}
	})
	c.start(c.machines...)
	c.put("k", "1")
	// A node that shows a certificate of another authority, or of another name, is not let in.
	odd := c.machines[2]
	c.stop(odd)
	pair := filepath.Join(dir, "odd")
	for _, cert := range []tls.Certificate{other.issue("n2", 2*time.Hour), ca.issue("n3", 2*time.Hour)} {
		writePair(t, pair, cert)
		stop := make(chan struct{})
		ended := make(chan error)
		go func() { ended <- odd.launch(stop, "--peer-cert-file", pair+".pem", "--peer-key-file", pair+".key") }()
		select {
		case err := <-ended:
			t.Errorf("a stranger got in: %v", err)
		case <-time.After(2 * time.Second):
			close(stop)
			if err := <-ended; !errors.Is(err, ErrStopped) {
				t.Error(err)
			}
		}
	}
	c.start(odd)
	c.put("k", "2")
}

func TestNodesWithCertificatesOfTheirOwn(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3)
	c.secured(func(*machine) []string { return []string{"--peer-auto-tls", "--data-dir", t.TempDir()} })
	c.start(c.machines...)
	c.put("k", "1")
}

// get asks a node's first listener by HTTP.
func (m *machine) get(t *testing.T, path string) (status int, body string, took time.Duration) {
	t.Helper()
	began := time.Now()
	resp, err := http.Get("http://" + m.node.Addrs()[0].String() + path)
	check(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(b), time.Since(began)
}

// The probes of a node that has lost its majority say that it is alive, and not ready. They
// wait for no leader longer than one request may take.
func TestProbesWithoutAMajority(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3, "--initial-splits", "g,n,t")
	c.start(c.machines...)
	left := c.machines[0]
	// What clients have seen of one shard is more than the others know of.
	c.put("a", "1")
	for range 5 {
		_, err := left.node.router.Put(t.Context(), &pb.PutRequest{Key: []byte("z"), Value: []byte("1")})
		check(t, err)
	}
	c.stop(c.machines[1:]...)
	until(t, "the leaders to be missed", func() bool { return left.node.cluster.Leader() == 0 })
	for _, path := range []string{"/livez", "/health?serializable=true", "/readyz/serializable_read"} {
		if status, body, took := left.get(t, path); status != http.StatusOK || took > 3*time.Second {
			t.Errorf("%s: %d after %v: %s", path, status, took, body)
		}
	}
	limit := 6 * time.Second // five, and two elections
	for _, path := range []string{"/health", "/readyz"} {
		if status, body, took := left.get(t, path); status != http.StatusServiceUnavailable || took > limit+3*time.Second {
			t.Errorf("%s: %d after %v: %s", path, status, took, body)
		}
	}
}
