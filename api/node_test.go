package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

const (
	testCluster = 0xc1
	testMember  = 0x8e9e05c52164694d
	testTerm    = 7
	// drawnLease is the id of the first lease that was granted without one.
	drawnLease = 0x5eed
)

// node is the layers below without Raft: a store and a lease table in memory,
// with a mutex where the shard has its log.
type node struct {
	store *mvcc.Store
	table *lease.Table
	db    *pebble.DB

	leader atomic.Uint64

	mu     sync.Mutex
	alarms []*pb.AlarmMember
	// members is what the cluster lists; unchanged, if set, is why changes of it are refused. learner says that this
	// node does not vote.
	members   []*pb.Member
	unchanged error
	learner   bool
	// fail, if set, is what every call on the store answers.
	fail error
	// broken, if set, is what the node's own state answers.
	broken error
	// held makes renewals of a lease wait until the channel is closed, as they do
	// while the end of the lease is under way.
	held map[int64]chan struct{}
	// before runs at the beginning of every call on the store.
	before func(context.Context)
	// backup is what WriteSnapshot writes.
	backup []byte
	// users are the users and roles, and tokens theirs.
	users  *auth.State
	tokens *auth.Simple
	// changed, if set, sees every change of users, and loggingIn runs before a login.
	changed   func(*pb.InternalRaftRequest)
	loggingIn func()
	// lost is what loseHistory was last called for, nil once it has come about.
	lost atomic.Pointer[lostHistory]
	// blind has all ranges fail.
	blind atomic.Bool
	// proving, if set, answers ProveUsers, and confirming runs before users are confirmed.
	// unconfirmed, if set, is why they can't be.
	proving     func(context.Context, *auth.State) error
	confirming  func()
	unconfirmed error
	// drawn counts the leases that were granted without an id.
	drawn int64
	// calls counts the calls that reached the store or the leases.
	calls atomic.Int64
}

func newNode(tb testing.TB) *node {
	tb.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quietPebble{}})
	check(tb, err)
	tb.Cleanup(func() { check(tb, db.Close()) })
	store, err := mvcc.Open(db, []byte("r"))
	check(tb, err)
	table, err := lease.Open(db, []byte("r"))
	check(tb, err)
	n := &node{store: store, table: table, db: db, held: make(map[int64]chan struct{}), users: auth.New(), tokens: auth.NewSimple(0)}
	n.leader.Store(testMember)
	n.members = []*pb.Member{{ID: testMember, Name: "one", PeerURLs: []string{"http://127.0.0.1:2380"}}}
	return n
}

// quietPebble drops what pebble logs.
type quietPebble struct{}

func (quietPebble) Infof(string, ...any)  {}
func (quietPebble) Errorf(string, ...any) {}
func (quietPebble) Fatalf(string, ...any) {}

// enter is the beginning of every call.
func (n *node) enter(ctx context.Context) error {
	n.calls.Add(1)
	n.mu.Lock()
	before, fail := n.before, n.fail
	n.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	return fail
}

// ReadOwn reads the node's own state.
func (n *node) ReadOwn(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken
}

// apply runs one command as a batch of its own.
func (n *node) apply(ctx context.Context, command func(*mvcc.Writer, *pebble.Batch) error) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.db.NewBatch()
	defer b.Close()
	w := n.store.NewWriter(b, n.table)
	if err := command(w, b); err != nil {
		return err
	}
	if err := w.Finish(); err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return err
	}
	w.Publish()
	return nil
}

func (n *node) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := n.enter(ctx); err != nil {
		return nil, err
	}
	if n.blind.Load() {
		return nil, mvcc.ErrFutureRev
	}
	v := n.store.View()
	defer v.Close()
	return v.Range(ctx, r)
}

func (n *node) RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return n.Range(ctx, r)
}

func (n *node) Peek(ctx context.Context, r *pb.RangeRequest, _ int64) (*pb.RangeResponse, error) {
	v := n.store.View()
	defer v.Close()
	return v.Range(ctx, r)
}

func (n *node) Divided(_, _ []byte) bool { return false }

func (n *node) RangeStream(
	ctx context.Context, r *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error,
) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	v := n.store.View()
	defer v.Close()
	return v.RangeStream(ctx, r, maxBytes, emit)
}

func (n *node) Put(ctx context.Context, r *pb.PutRequest) (resp *pb.PutResponse, err error) {
	err = n.apply(ctx, func(w *mvcc.Writer, _ *pebble.Batch) error {
		resp, err = w.Put(r, mvcc.Opts{Want: true})
		return err
	})
	return resp, err
}

func (n *node) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (resp *pb.DeleteRangeResponse, err error) {
	err = n.apply(ctx, func(w *mvcc.Writer, _ *pebble.Batch) error {
		resp, err = w.DeleteRange(r, mvcc.Opts{Want: true})
		return err
	})
	return resp, err
}

func (n *node) Txn(ctx context.Context, r *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	err = n.apply(ctx, func(w *mvcc.Writer, _ *pebble.Batch) error {
		resp, err = w.Txn(r, mvcc.Opts{Want: true})
		return err
	})
	return resp, err
}

func (n *node) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	err := n.apply(ctx, func(w *mvcc.Writer, _ *pebble.Batch) error { return w.Compact(r.GetRevision()) })
	if err != nil {
		return nil, err
	}
	for done := false; !done; {
		if done, err = n.store.Sweep(1000); err != nil {
			return nil, err
		}
	}
	return &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: n.store.Rev()}}, nil
}

func (n *node) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (resp *pb.LeaseGrantResponse, err error) {
	err = n.apply(ctx, func(_ *mvcc.Writer, b *pebble.Batch) error {
		id := r.GetID()
		if id == 0 {
			id = drawnLease + n.drawn
			n.drawn++
		}
		rec, err := n.table.Grant(b, id, r.GetTTL())
		resp = &pb.LeaseGrantResponse{ID: rec.ID, TTL: rec.TTL}
		return err
	})
	return resp, err
}

func (n *node) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (resp *pb.LeaseRevokeResponse, err error) {
	err = n.apply(ctx, func(w *mvcc.Writer, b *pebble.Batch) error {
		keys, err := n.table.Revoke(b, r.GetID())
		if err != nil {
			return err
		}
		rev, _, err := w.DeleteKeys(keys, mvcc.Opts{})
		resp = &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{Revision: rev}}
		return err
	})
	return resp, err
}

func (*node) LeaseRenewAhead(context.Context, int64, []byte) (
	int64, func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), error,
) {
	return 0, nil, nil
}

func (n *node) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	if err := n.enter(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	held := n.held[id]
	n.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	rec, ok := n.table.Get(id)
	if !ok {
		return &pb.LeaseKeepAliveResponse{ID: id}, nil
	}
	return &pb.LeaseKeepAliveResponse{ID: id, TTL: rec.TTL}, nil
}

func (n *node) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	if err := n.enter(ctx); err != nil {
		return nil, err
	}
	rec, ok := n.table.Get(r.GetID())
	if !ok {
		return nil, lease.ErrNotFound
	}
	resp := &pb.LeaseTimeToLiveResponse{ID: rec.ID, TTL: rec.TTL - 1, GrantedTTL: rec.TTL}
	if r.GetKeys() {
		resp.Keys = n.table.Keys(rec.ID)
	}
	return resp, nil
}

func (n *node) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := n.enter(ctx); err != nil {
		return nil, err
	}
	resp := &pb.LeaseLeasesResponse{}
	for _, rec := range n.table.All() {
		resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: rec.ID})
	}
	return resp, nil
}

func (n *node) Users(context.Context) (*auth.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.users, nil
}

func (n *node) ProveUsers(ctx context.Context, users *auth.State) error {
	n.mu.Lock()
	proving := n.proving
	n.mu.Unlock()
	if proving == nil {
		return nil
	}
	return proving(ctx, users)
}

func (n *node) ConfirmUsers(ctx context.Context) (*auth.State, error) {
	n.mu.Lock()
	confirming, unconfirmed := n.confirming, n.unconfirmed
	n.mu.Unlock()
	if unconfirmed != nil {
		return nil, unconfirmed
	}
	if confirming != nil {
		confirming()
	}
	return n.Users(ctx)
}

func (n *node) ChangeUsers(_ context.Context, r *pb.InternalRaftRequest) error {
	if n.changed != nil {
		n.changed(r)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	next, effect, err := n.users.Apply(r)
	n.users = next
	if effect.Ended != "" {
		n.tokens.End(effect.Ended)
	}
	if effect.EndAll {
		n.tokens.EndAll()
	}
	return err
}

func (n *node) Login(_ context.Context, user, prefix string) (token string, err error) {
	if n.loggingIn != nil {
		n.loggingIn()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.users, token, err = n.users.Login(user, prefix)
	if err == nil {
		n.tokens.Begin(token, user)
	}
	return token, err
}

// gate returns what services made by hand look at callers with.
func (n *node) gate() *gate {
	return &gate{users: n, tokens: n.tokens, log: slog.New(slog.DiscardHandler)}
}

func (n *node) NewWatchGroup() WatchGroup { return storeGroup{n.store.NewGroup(), n} }

// storeGroup is a group of one store, whose progress is never on its way.
type storeGroup struct {
	*mvcc.Group

	n *node
}

// lostHistory is a key whose next watch begins in compacted history, and what is closed
// when that watch has begun.
type lostHistory struct {
	key   string
	begun chan struct{}
}

// loseHistory has the next watch of key begin in compacted history, and returns a channel
// that is closed then. It is called before what makes the watch is.
func (n *node) loseHistory(key string) <-chan struct{} {
	begun := make(chan struct{})
	n.lost.Store(&lostHistory{key, begun})
	return begun
}

// Add starts a watcher, of a key whose history is lost at the first revision.
func (g storeGroup) Add(id int64, o mvcc.WatchOptions) int64 {
	if lost := g.n.lost.Load(); lost != nil && lost.key == string(o.Key) && g.n.lost.CompareAndSwap(lost, nil) {
		o.Start = 1
		close(lost.begun)
	}
	return g.Group.Add(id, o)
}

func (g storeGroup) Progress() (rev int64, ok, later bool) {
	rev, ok = g.Group.Progress()
	return rev, ok, false
}

func (g storeGroup) ProgressOf(id int64) (rev int64, ok, later bool) {
	rev, ok = g.Group.ProgressOf(id)
	return rev, ok, false
}

func (n *node) ClusterID() uint64 { return testCluster }
func (n *node) MemberID() uint64  { return testMember }
func (n *node) Term() uint64      { return testTerm }
func (n *node) Leader() uint64    { return n.leader.Load() }

func (n *node) Members(context.Context, bool) ([]*pb.Member, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.members), nil
}

func (n *node) Alarms() []*pb.AlarmMember {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.alarms)
}

func (n *node) RaiseAlarm(_ context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.alarms {
		if m.GetMemberID() == member && m.GetAlarm() == a {
			return []*pb.AlarmMember{m}, nil
		}
	}
	m := &pb.AlarmMember{MemberID: member, Alarm: a}
	n.alarms = append(n.alarms, m)
	return []*pb.AlarmMember{m}, nil
}

func (n *node) ClearAlarm(_ context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, m := range n.alarms {
		if m.GetMemberID() == member && m.GetAlarm() == a {
			n.alarms = slices.Delete(n.alarms, i, i+1)
			return []*pb.AlarmMember{m}, nil
		}
	}
	return nil, nil
}

func (n *node) DBSize() int64   { return n.store.Size() + n.table.Size() }
func (n *node) Revision() int64 { return n.store.Rev() }

func (n *node) Status() NodeStatus {
	v := n.store.View()
	defer v.Close()
	return NodeStatus{DBSize: n.DBSize(), DBSizeInUse: v.LiveSize(), RaftIndex: 12, RaftAppliedIndex: 11}
}

func (n *node) HashKV(_ context.Context, rev int64) (*pb.HashKVResponse, error) {
	v := n.store.View()
	defer v.Close()
	sum, compacted, at, err := v.HashKV(rev)
	if err != nil {
		return nil, err
	}
	return &pb.HashKVResponse{
		Header: &pb.ResponseHeader{Revision: v.Rev()}, Hash: sum, CompactRevision: compacted, HashRevision: at,
	}, nil
}

func (n *node) Hash(context.Context) (uint32, error) {
	v := n.store.View()
	defer v.Close()
	return v.Hash()
}

func (n *node) Defragment(ctx context.Context) error { return n.enter(ctx) }

func (n *node) MoveLeader(ctx context.Context, member uint64) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	n.leader.Store(member)
	return nil
}

func (n *node) WriteSnapshot(ctx context.Context, w io.Writer) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	_, err := w.Write(n.backup)
	return err
}

// set changes what mu guards.
func (n *node) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// config returns the configuration of a server over n, with etcd's defaults.
func (n *node) config(tb testing.TB) Config {
	tb.Helper()
	return Config{
		Store: n, Leases: n, Watches: n, Cluster: n, Maintenance: n, Users: n, Tokens: n.tokens, BcryptCost: auth.MinCost,
		Log:         slog.New(slog.DiscardHandler),
		Metrics:     prometheus.NewRegistry(),
		SnapshotDir: tb.TempDir(),
	}
}

// running is a server on a socket with a connection to it.
type running struct {
	*node

	server *Server
	addr   string
	conn   *grpc.ClientConn

	kv          pb.KVClient
	watch       pb.WatchClient
	lease       pb.LeaseClient
	cluster     pb.ClusterClient
	auth        pb.AuthClient
	maintenance pb.MaintenanceClient
	lock        v3lockpb.LockClient
	election    v3electionpb.ElectionClient
}

// start serves over a new node; change, if not nil, adjusts the configuration.
func start(tb testing.TB, change func(*Config)) *running {
	tb.Helper()
	n := newNode(tb)
	c := n.config(tb)
	if change != nil {
		change(&c)
	}
	server, err := NewServer(c)
	check(tb, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(tb, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l, AllTraffic) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(tb, err)
	tb.Cleanup(func() {
		check(tb, conn.Close())
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		server.Stop(ctx)
		if err := <-served; !errors.Is(err, ErrServerStopped) {
			tb.Errorf("Serve returned %v, want %v", err, ErrServerStopped)
		}
	})
	return &running{
		node: n, server: server, addr: l.Addr().String(), conn: conn,
		kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), lease: pb.NewLeaseClient(conn),
		cluster: pb.NewClusterClient(conn), auth: pb.NewAuthClient(conn), maintenance: pb.NewMaintenanceClient(conn),
		lock: v3lockpb.NewLockClient(conn), election: v3electionpb.NewElectionClient(conn),
	}
}

// put writes key and returns the revision.
func (r *running) put(tb testing.TB, key, value string) int64 {
	tb.Helper()
	resp, err := r.kv.Put(tb.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	check(tb, err)
	return resp.GetHeader().GetRevision()
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// wantStatus fails the test unless err is a status with this code and text.
func wantStatus(tb testing.TB, err error, code codes.Code, text string) {
	tb.Helper()
	s, ok := status.FromError(err)
	if !ok || s.Code() != code || s.Message() != text {
		tb.Errorf("got %v, want code %v and text %q", err, code, text)
	}
}

func diff(tb testing.TB, want, got any) {
	tb.Helper()
	if d := gocmp.Diff(want, got, protocmp.Transform()); d != "" {
		tb.Errorf("-want +got\n%s", d)
	}
}

// header is what every answer's header holds beside the revision.
func header(rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: testCluster, MemberId: testMember, RaftTerm: testTerm, Revision: rev}
}

// IsLearner reports whether the node votes not.
func (n *node) IsLearner() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.learner
}

// changeMembers makes a change of the members, or says why not.
func (n *node) changeMembers(change func()) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unchanged == nil {
		change()
	}
	return n.unchanged
}

// AddMember adds member 99.
func (n *node) AddMember(_ context.Context, peerURLs []string, learner bool) (uint64, error) {
	return 99, n.changeMembers(func() {
		n.members = append(n.members, &pb.Member{ID: 99, PeerURLs: peerURLs, IsLearner: learner})
	})
}

// PromoteMember makes a member vote.
func (n *node) PromoteMember(_ context.Context, id uint64) error {
	return n.changeMembers(func() { memberOf(n.members, id).IsLearner = false })
}

// RemoveMember removes a member.
func (n *node) RemoveMember(_ context.Context, id uint64) error {
	return n.changeMembers(func() {
		n.members = slices.DeleteFunc(slices.Clone(n.members), func(m *pb.Member) bool { return m.GetID() == id })
	})
}

// UpdateMember changes a member's addresses.
func (n *node) UpdateMember(_ context.Context, id uint64, peerURLs []string) error {
	return n.changeMembers(func() { memberOf(n.members, id).PeerURLs = peerURLs })
}
