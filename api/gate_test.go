package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/router"
)

// enableUsers makes root and u, with their names as passwords, and has calls
// checked.
func (r *running) enableUsers(tb testing.TB) {
	tb.Helper()
	for _, name := range []string{"root", "u"} {
		_, err := r.auth.UserAdd(tb.Context(), &pb.AuthUserAddRequest{Name: name, Password: name})
		check(tb, err)
	}
	_, err := r.auth.UserGrantRole(tb.Context(), &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"})
	check(tb, err)
	_, err = r.auth.AuthEnable(tb.Context(), &pb.AuthEnableRequest{})
	check(tb, err)
}

// token returns a token of a user whose password is the name.
func (r *running) token(tb testing.TB, user string) string {
	tb.Helper()
	resp, err := r.auth.Authenticate(tb.Context(), &pb.AuthenticateRequest{Name: user, Password: user})
	check(tb, err)
	return resp.GetToken()
}

func certificate(name string) []*x509.Certificate {
	return []*x509.Certificate{{Subject: pkix.Name{CommonName: name}}}
}

func withCertificates(ctx context.Context, chains ...[]*x509.Certificate) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: chains}}})
}

func TestWhoCalls(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	token := r.token(t, "u")
	g := &gate{users: r.node, tokens: r.tokens, certificates: true, log: r.server.log}
	with := func(pairs ...string) context.Context {
		return metadata.NewIncomingContext(t.Context(), metadata.Pairs(pairs...))
	}
	u := auth.Identity{User: "u", Revision: r.users.Revision, Known: true}
	cn := auth.Identity{User: "cn", Revision: r.users.Revision, Known: true}
	nobody := auth.Identity{}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		want auth.Identity
		err  error
	}{
		{"nothing", t.Context(), nobody, nil},
		{"other metadata", with("other", token), nobody, nil},
		{"token", with("token", token), u, nil},
		{"token of a bearer", with("token", "Bearer "+token), u, nil},
		{"authorization", with("authorization", token), u, nil},
		{"authorization of a bearer", with("authorization", "Bearer "+token), u, nil},
		{"the first of two tokens", with("token", token, "token", "x"), u, nil},
		{"token before authorization", with("authorization", "x", "token", token), u, nil},
		{"bad token before authorization", with("authorization", token, "token", "x"), nobody, auth.ErrInvalidToken},
		{"bad token", with("token", "x"), nobody, auth.ErrInvalidToken},
		{"empty token", with("token", ""), nobody, auth.ErrInvalidToken},
		{"bearer in small letters", with("authorization", "bearer "+token), nobody, auth.ErrInvalidToken},
		{"certificate", withCertificates(with(), certificate("cn")), cn, nil},
		{"first certificate", withCertificates(with(), nil, certificate("cn"), certificate("x")), cn, nil},
		{"certificate without a name", withCertificates(with(), certificate("")), auth.Identity{Revision: u.Revision, Known: true}, nil},
		{"no verified certificate", withCertificates(with()), nobody, nil},
		{"certificate of the gateway", withCertificates(with(gatewayHeader, "x"), certificate("cn")), nobody, nil},
		{"token over certificate", withCertificates(with("token", token), certificate("cn")), u, nil},
		{"bad token over certificate", withCertificates(with("token", "x"), certificate("cn")), nobody, auth.ErrInvalidToken},
		{"connection without TLS", peer.NewContext(with(), &peer.Peer{}), nobody, nil},
	} {
		_, got, err := g.identify(tc.ctx)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
	}
	g.certificates = false
	if _, got, err := g.identify(withCertificates(with(), certificate("cn"))); got != nobody || err != nil {
		t.Errorf("a certificate where none are asked for: %+v, %v", got, err)
	}
	// While nothing is checked even a bad token is nothing.
	r.set(func() { off := *r.users; off.Enabled = false; r.users = &off })
	if _, got, err := g.identify(with("token", "x")); got != nobody || err != nil {
		t.Errorf("a bad token while nothing is checked: %+v, %v", got, err)
	}
}

// A call whose rights changed under it is made again, with a new look at its token,
// a few times. What the token itself says can't become better.
func TestOutdatedCallsAreMadeAgain(t *testing.T) {
	n := newNode(t)
	unsigned := auth.Identity{User: "u", Known: true}
	signed := auth.Identity{User: "u", Known: true, Signed: true}
	for _, tc := range []struct {
		name  string
		id    auth.Identity
		errs  []error
		calls int
		code  codes.Code
	}{
		{"done at once", unsigned, nil, 1, codes.OK},
		{"outdated once", unsigned, []error{router.ErrOutdated}, 2, codes.OK},
		{"outdated again", signed, []error{router.ErrOutdated, router.ErrOutdated}, 3, codes.OK},
		{"old once", unsigned, []error{auth.ErrOldRevision}, 2, codes.OK},
		{"old by its signature", signed, []error{auth.ErrOldRevision}, 1, codes.InvalidArgument},
		{"denied", unsigned, []error{auth.ErrPermissionDenied}, 1, codes.PermissionDenied},
		{"outdated for ever", unsigned, []error{router.ErrOutdated, router.ErrOutdated, router.ErrOutdated, router.ErrOutdated, nil}, maxChecks, codes.InvalidArgument},
	} {
		g := n.gate()
		g.tokens = fixedTokens{Simple: n.tokens, id: tc.id}
		n.users = &auth.State{Settings: auth.Settings{Enabled: true, Revision: 1}}
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("token", "x"))
		calls := 0
		_, err := checked(ctx, g, needNothing, func(ctx context.Context) (int, error) {
			calls++
			if got := auth.From(ctx); got != tc.id {
				t.Errorf("%s: call %d is %+v's", tc.name, calls, got)
			}
			if calls > len(tc.errs) {
				return 0, nil
			}
			return 0, tc.errs[calls-1]
		})
		if calls != tc.calls || status.Code(err) != tc.code {
			t.Errorf("%s: %d calls, %v", tc.name, calls, err)
		}
	}
}

// fixedTokens are anybody's.
type fixedTokens struct {
	*auth.Simple
	id auth.Identity
}

func (f fixedTokens) Identify(string, uint64) (auth.Identity, bool) { return f.id, true }

// Passwords come to the log as hashes, and not at all where there is none.
func TestPasswordsAreHashedFirst(t *testing.T) {
	r := start(t, nil)
	var seen []*pb.InternalRaftRequest
	r.changed = func(req *pb.InternalRaftRequest) { seen = append(seen, req) }
	ctx := t.Context()
	_, err := r.auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "u", Password: "secret", HashedPassword: "ignored"})
	check(t, err)
	_, err = r.auth.UserAdd(ctx, &pb.AuthUserAddRequest{
		Name: "cert", Password: "secret", Options: &authpb.UserAddOptions{NoPassword: true},
	})
	check(t, err)
	_, err = r.auth.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: "u", Password: "secret"})
	check(t, err)
	if len(seen) != 3 {
		t.Fatalf("%d changes", len(seen))
	}
	for _, req := range seen {
		if text := req.String(); strings.Contains(text, "secret") || strings.Contains(text, "ignored") {
			t.Errorf("the log gets %s", text)
		}
	}
	_, err = r.auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "v", Password: strings.Repeat("p", 73)})
	wantStatus(t, err, codes.Unknown, "bcrypt: password length exceeds 72 bytes")
}

// A password is not hashed for those who may not set one.
func TestNoHashForStrangers(t *testing.T) {
	r := start(t, func(c *Config) { c.BcryptCost = auth.MaxCost })
	r.enableUsersByHash(t)
	for _, ctx := range []context.Context{
		t.Context(), metadata.AppendToOutgoingContext(t.Context(), "token", "x"),
	} {
		_, err := r.auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "v", Password: "p"})
		if code := status.Code(err); code != codes.InvalidArgument && code != codes.Unauthenticated {
			t.Errorf("a stranger adds a user: %v", err)
		}
	}
}

// enableUsersByHash is enableUsers without hashing here.
func (r *running) enableUsersByHash(tb testing.TB) {
	tb.Helper()
	r.set(func() {
		next, _, err := r.users.Apply(&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "root"}})
		check(tb, err)
		next, _, err = next.Apply(&pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}})
		check(tb, err)
		r.users, _, err = next.Apply(&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}})
		check(tb, err)
	})
}

// The password must still be the right one when the token is there.
func TestPasswordChangesUnderALogin(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	changed := false
	r.loggingIn = func() {
		if changed {
			return
		}
		changed = true
		hash, err := auth.Hash("other", auth.MinCost)
		check(t, err)
		check(t, r.ChangeUsers(t.Context(), &pb.InternalRaftRequest{
			Header:                 &pb.RequestHeader{Username: "root"},
			AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "u", HashedPassword: hash},
		}))
	}
	_, err := r.auth.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "u", Password: "u"})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: authentication failed, invalid user ID or password")
	if !changed {
		t.Error("nothing changed under the login")
	}
}

// grantRead gives u the right to read a key by the role r, and returns the users with and
// without it.
func (r *running) grantRead(t *testing.T, key string) (with, without *auth.State) {
	t.Helper()
	r.set(func() {
		apply := func(s *auth.State, req *pb.InternalRaftRequest) *auth.State {
			req.Header = &pb.RequestHeader{Username: "root"}
			next, _, err := s.Apply(req)
			check(t, err)
			return next
		}
		without = apply(r.users, &pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "r"}})
		without = apply(without, &pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "u", Role: "r"}})
		p := &authpb.Permission{PermType: authpb.Permission_READ, Key: []byte(key)}
		with = apply(without, &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r", Perm: p}})
		without = apply(with, &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte(key)}})
		r.users = with
	})
	return with, without
}

// lags makes the node know the newest users only when it has asked for them.
func (r *running) lags(newest *auth.State) {
	r.set(func() {
		r.proving = func(_ context.Context, users *auth.State) error {
			if users != newest {
				return router.ErrOutdated
			}
			return nil
		}
		r.confirming = func() { r.set(func() { r.users = newest }) }
	})
}

// A node that has not heard yet that a right was taken away lets nobody watch by it.
func TestWatchByALostRight(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	_, without := r.grantRead(t, "k")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "u"))
	r.lags(without)
	stream, err := r.watch.Watch(ctx)
	check(t, err)
	w := &watcher{t, stream}
	w.request(&pb.WatchCreateRequest{Key: []byte("k")})
	if resp := w.recv(); !resp.GetCanceled() || !strings.Contains(resp.GetCancelReason(), "permission denied") {
		t.Errorf("a watch by a lost right: %v", resp)
	}
}

// While nothing can be proved a stream's watches go on, what the client asks for next waits
// its turn, and a watch that can't be proved in time ends the stream so that the client asks
// elsewhere.
func TestWatchWithoutAProof(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	r.grantRead(t, "k")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "u"))
	stream, err := r.watch.Watch(ctx)
	check(t, err)
	w := &watcher{t, stream}
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	answers := make(chan error)
	answer := func(err error) {
		t.Helper()
		select {
		case answers <- err:
		case <-time.After(time.Minute):
			t.Fatal("nothing was to be proved")
		}
	}
	r.set(func() { r.proving = func(context.Context, *auth.State) error { return <-answers } })
	w.request(&pb.WatchCreateRequest{Key: []byte("k")})
	w.request(&pb.WatchCancelRequest{WatchId: 1})
	_, err = r.kv.Put(metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "root")), &pb.PutRequest{Key: []byte("k"), Value: []byte("v")})
	check(t, err)
	w.want(events(0, 2, putEvent("k", "v", 2, 2, 1)))
	answer(nil)
	w.want(&pb.WatchResponse{Header: header(2), WatchId: 1, Created: true})
	w.want(&pb.WatchResponse{Header: header(2), WatchId: 1, Canceled: true})
	w.request(&pb.WatchCreateRequest{Key: []byte("k")})
	answer(raft.ErrTimeout)
	_, err = w.stream.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: request timed out")
}

// Who loses the root role while a backup is made does not get it: it may have what was written
// since.
func TestRootLostUnderABackup(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	root := metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "root"))
	lost := *r.users
	u := *lost.Users["root"]
	u.Roles = nil
	lost.Users = map[string]*auth.User{"root": &u}
	r.set(func() {
		r.proving = func(context.Context, *auth.State) error {
			r.lags(&lost)
			return nil
		}
	})
	stream, err := r.maintenance.Snapshot(root, &pb.SnapshotRequest{})
	check(t, err)
	if _, err = stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a backup for who was root when it was begun: %v", err)
	}
}

// A node that knows that there are newer users, and reaches nobody who would tell it of them,
// does nothing by those that it knows.
func TestRootKnownToBeOutdated(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	root := metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "root"))
	r.set(func() {
		r.proving = func(context.Context, *auth.State) error { return router.ErrOutdated }
		r.unconfirmed = raft.ErrTimeout
	})
	stream, err := r.maintenance.Snapshot(root, &pb.SnapshotRequest{})
	check(t, err)
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: request timed out")
}

// Whoever has lost the root role can do nothing with it, on a node either that has not heard
// of that. Without a leader a node goes by what it knows.
func TestRootIsProved(t *testing.T) {
	r := start(t, nil)
	r.enableUsers(t)
	root := metadata.AppendToOutgoingContext(t.Context(), "token", r.token(t, "root"))
	calls := map[string]func() error{
		"snapshot": func() error {
			stream, err := r.maintenance.Snapshot(root, &pb.SnapshotRequest{})
			check(t, err)
			_, err = stream.Recv()
			return err
		},
		"hash": func() error { _, err := r.maintenance.Hash(root, &pb.HashRequest{}); return err },
		"hash of keys": func() error {
			_, err := r.maintenance.HashKV(root, &pb.HashKVRequest{})
			return err
		},
		"defragmentation": func() error { _, err := r.maintenance.Defragment(root, &pb.DefragmentRequest{}); return err },
		"alarm": func() error {
			_, err := r.maintenance.Alarm(root, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE})
			return err
		},
		"compaction": func() error { _, err := r.kv.Compact(root, &pb.CompactionRequest{Revision: 1}); return err },
	}
	for name, call := range calls {
		r.set(func() { r.proving = func(context.Context, *auth.State) error { return raft.ErrTimeout } })
		if err := call(); (err != nil) != (name == "compaction") {
			t.Errorf("%s without a leader: %v", name, err)
		}
	}
	before := r.users
	lost := *before
	u := *lost.Users["root"]
	u.Roles = nil
	lost.Users = map[string]*auth.User{"root": &u}
	r.lags(&lost)
	for name, call := range calls {
		r.set(func() { r.users = before })
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s by who was root: %v", name, err)
		}
	}
}
