package differential

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/node"
)

const (
	// maxAnswerBytes is what a client of the tests accepts: a watch may owe it more
	// than gRPC's default.
	maxAnswerBytes = 256 << 20
	// noticeInterval is the time between progress notices of both servers. etcd
	// keeps it in one variable for all servers of a process.
	noticeInterval = 500 * time.Millisecond
	// memberName and the URLs are the same on both servers, so that lists of
	// members differ in ids alone.
	memberName    = "diff"
	advertiseURL  = "http://localhost:2379"
	advertisePeer = "http://localhost:2380"
	// etcdToken makes etcd an id whose bit 15 is that of Latchkey's id under its own
	// token: that bit is a byte more or less in the size of a logged request.
	etcdToken     = "etcd-cluster"
	latchkeyToken = "diff"
)

// server is one of the two servers that are compared, with clients of its
// services.
type server struct {
	name    string
	address string
	conn    *grpc.ClientConn
	kv      pb.KVClient
	watch   pb.WatchClient
	lease   pb.LeaseClient
	cluster pb.ClusterClient
	maint   pb.MaintenanceClient
	auth    pb.AuthClient

	// clusterID and memberID are what this server's headers must carry.
	clusterID, memberID uint64
	// actual are the lease ids that this server picked, by the id that the
	// reference picked for the same lease; logical is the opposite.
	actual, logical map[int64]int64
	// order maps revisions onto the reference's, nil where they are the same.
	order *order
}

// startEtcd runs a real etcd of one member in this process until the test ends.
// change adjusts its configuration.
func startEtcd(t *testing.T, name string, change ...func(*embed.Config)) *server {
	t.Helper()
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialClusterToken = memberName, t.TempDir(), etcdToken
	c.ListenClientUrls, c.ListenPeerUrls = urls(t, "http://127.0.0.1:0"), urls(t, "http://127.0.0.1:0")
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = urls(t, advertiseURL), urls(t, advertisePeer)
	c.InitialCluster = memberName + "=" + advertisePeer
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.UnsafeNoFsync = true
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 100
	c.WatchProgressNotifyInterval = noticeInterval
	for _, f := range change {
		f(c)
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatalf("start etcd: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready after a minute")
	}
	// Where there are several listeners, etcd has them in random order.
	addr := c.ListenClientUrls[0].Host
	if c.ListenClientUrls[0].Port() == "0" {
		addr = e.Clients[0].Addr().String()
	}
	return dial(t, name, addr)
}

func urls(t *testing.T, text string) []url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return []url.URL{*u}
}

// startLatchkey runs a Latchkey of one node in this process until the test ends,
// with further flags.
func startLatchkey(t *testing.T, flags ...string) *server {
	t.Helper()
	c, err := config.Parse(append([]string{
		"--name", memberName, "--data-dir", t.TempDir(), "--initial-cluster-token", latchkeyToken,
		"--advertise-client-urls", advertiseURL, "--listen-client-urls", advertiseURL, "--listen-peer-urls", harness.AnyPeerURL,
		"--watch-progress-notify-interval", noticeInterval.String(),
	}, flags...), nil)
	if err != nil {
		t.Fatalf("configure latchkey: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Start(node.Options{
		Config: c, Log: slog.New(slog.DiscardHandler), Listeners: []net.Listener{l}, RaftFS: vfs.Wrap(hasty{vfs.Default}, faultless{}),
	})
	if err != nil {
		t.Fatalf("start latchkey: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Errorf("stop latchkey: %v", err)
		}
	})
	return dial(t, "latchkey", l.Addr().String())
}

// startShards runs a Latchkey that divides the keys of a layout among shards.
func startShards(t *testing.T, l *layout, seed uint64, flags ...string) *server {
	t.Helper()
	s := startLatchkey(t, append(l.flags(), flags...)...)
	if len(l.splits) > 0 {
		s.order = newOrder(l, seed, 1, 1)
	}
	return s
}

// hasty is a file system that syncs nothing: the comparison, which no crash may
// interrupt, takes half the time.
type hasty struct{ vfs.FS }

// faultless injects no faults: the Raft engine takes a file system that is not
// its own only in the shape of one that injects some.
type faultless struct{}

// MaybeError returns no error.
func (faultless) MaybeError(vfs.Op) error { return nil }

type hastyFile struct{ vfs.File }

// Sync does nothing.
func (hastyFile) Sync() error { return nil }

func hastily(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return hastyFile{f}, nil
}

// Create creates a file that is never synced.
func (h hasty) Create(name string) (vfs.File, error) { return hastily(h.FS.Create(name)) }

// OpenDir opens a directory that is never synced.
func (h hasty) OpenDir(name string) (vfs.File, error) { return hastily(h.FS.OpenDir(name)) }

// OpenForAppend opens a file that is never synced.
func (h hasty) OpenForAppend(name string) (vfs.File, error) { return hastily(h.FS.OpenForAppend(name)) }

// ReuseForWrite renames a file and opens it; it is never synced.
func (h hasty) ReuseForWrite(from, to string) (vfs.File, error) {
	return hastily(h.FS.ReuseForWrite(from, to))
}

// dial connects to a server and waits until it tells of itself what the
// comparison relies on: its ids, a leader, and the version of its storage, which
// etcd knows a moment after its start.
func dial(t *testing.T, name, address string, options ...grpc.DialOption) *server {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes), grpc.MaxCallSendMsgSize(maxAnswerBytes)))...)
	if err != nil {
		t.Fatalf("dial %s: %v", name, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &server{
		name: name, address: address, conn: conn,
		kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), lease: pb.NewLeaseClient(conn),
		cluster: pb.NewClusterClient(conn), maint: pb.NewMaintenanceClient(conn), auth: pb.NewAuthClient(conn),
		actual: make(map[int64]int64), logical: make(map[int64]int64),
	}
	deadline := time.Now().Add(time.Minute)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		st, err := s.maint.Status(ctx, &pb.StatusRequest{})
		cancel()
		if err == nil && migrated(st) && st.GetLeader() != 0 {
			s.clusterID, s.memberID = st.GetHeader().GetClusterId(), st.GetHeader().GetMemberId()
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %v, %v", name, st, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// migrated reports whether a server's storage is of its own version: etcd's begins with an
// older one, and is brought to that by a routine that runs now and then.
func migrated(st *pb.StatusResponse) bool {
	own := strings.SplitAfterN(st.GetVersion(), ".", 3)
	return len(own) == 3 && strings.HasPrefix(st.GetStorageVersion(), own[0]+own[1])
}

// checkEnvelopes makes sure that both servers judge the size of a request alike.
func checkEnvelopes(tb testing.TB, a, b *server) {
	tb.Helper()
	const bit = 1 << 15
	if a.memberID&bit != b.memberID&bit {
		tb.Fatalf("member ids %x and %x differ in bit 15: change a cluster token", a.memberID, b.memberID)
	}
}
