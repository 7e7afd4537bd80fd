package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A01, on one node: a token over a crash is accepted, or refused with the text that
// makes clients log in again. Clients with name and password notice nothing.
func TestTokensOverRestarts(t *testing.T) {
	for name, tc := range map[string]struct {
		flag string
		want error
	}{
		"simple": {"--auth-token=simple", rpctypes.ErrGRPCInvalidAuthToken},
		"jwt":    {harness.JWTFlag(t), nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveUsers(t, tc.flag)
			s.member("u", mayBoth, "k", "")
			s.enable()
			token, c := s.token("u"), s.login("u")
			get := func() error {
				_, err := s.KV.Range(withToken(s.Bound(), token), &pb.RangeRequest{Key: []byte("k")})
				return err
			}
			harness.WantStatus(t, "before the crash", get(), nil)
			for range 2 {
				s.Restart()
				harness.WantStatus(t, "after a crash", get(), tc.want)
				if _, err := c.Put(s.Bound(), "k", "v"); err != nil {
					t.Errorf("put with name and password: %v", err)
				}
				if _, err := c.Get(s.Bound(), "k"); err != nil {
					t.Errorf("get with name and password: %v", err)
				}
			}
		})
	}
}

// A simple token lasts for its TTL since its last use.
func TestTokenTTL(t *testing.T) {
	s := serveUsers(t, "--auth-token-ttl", "2")
	s.enable()
	token := s.token("root")
	get := func() error {
		_, err := s.KV.Range(withToken(s.Bound(), token), &pb.RangeRequest{Key: []byte("k")})
		return err
	}
	for range 3 {
		time.Sleep(time.Second)
		harness.WantStatus(t, "a token in use", get(), nil)
	}
	time.Sleep(2500 * time.Millisecond)
	harness.WantStatus(t, "a token out of use", get(), rpctypes.ErrGRPCInvalidAuthToken)
}

// A03, on one node: changes of users break nobody's requests, and a crash between
// loses nothing that was acknowledged.
func TestChangingUsersBreaksNoRequests(t *testing.T) {
	t.Parallel()
	for name, flag := range map[string]string{"simple": "--auth-token=simple", "jwt": harness.JWTFlag(t)} {
		t.Run(name, func(t *testing.T) {
			const clients = 20
			s := serveUsers(t, flag)
			s.member("u", mayBoth, "k/", "k0")
			s.enable()
			root := s.login("root")
			var wg sync.WaitGroup
			var stop atomic.Bool
			acked := make([]int, clients)
			for i := range clients {
				c := s.login("u")
				wg.Go(func() { acked[i] = putUntil(t, c, fmt.Sprintf("k/%d", i), &stop) })
			}
			for i := range 20 {
				changeUsers(t, root, i)
				if i == 10 {
					s.Restart()
				}
				time.Sleep(100 * time.Millisecond)
			}
			stop.Store(true)
			wg.Wait()
			total := 0
			for i, n := range acked {
				total += n
				resp, err := root.Get(s.Bound(), fmt.Sprintf("k/%d", i))
				if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].Version < int64(n) {
					t.Errorf("client %d had %d puts acknowledged: %v, %v", i, n, resp, err)
				}
			}
			t.Logf("%d puts", total)
			before := s.hash(root)
			s.Restart()
			if after := s.hash(root); after != before {
				t.Errorf("hash %d after a restart, %d before", after, before)
			}
			users, err := root.UserList(s.Bound())
			if err != nil || len(users.Users) != 2+20 {
				t.Errorf("users %v, %v", users, err)
			}
		})
	}
}

// putUntil puts until stop and returns how often it was acknowledged.
func putUntil(t *testing.T, c *clientv3.Client, key string, stop *atomic.Bool) (acked int) {
	t.Helper()
	for !stop.Load() {
		ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
		_, err := c.Put(ctx, key, "v")
		cancel()
		switch {
		case err == nil:
			acked++
		case status.Code(err) == codes.Unavailable, errors.Is(err, rpctypes.ErrAuthOldRevision):
			// The server was down, or rights changed again and again under the call.
		default:
			t.Errorf("put %s: %v", key, err)
			return acked
		}
		time.Sleep(5 * time.Millisecond)
	}
	return acked
}

// changeUsers adds the n-th user, with a role.
func changeUsers(t *testing.T, root *clientv3.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	name := fmt.Sprintf("new%d", n)
	_, err := root.UserAdd(ctx, name, name)
	if err == nil {
		_, err = root.RoleAdd(ctx, name)
	}
	if err == nil {
		_, err = root.UserGrantRole(ctx, name, name)
	}
	if err != nil {
		t.Errorf("add %s: %v", name, err)
	}
}

func (s *guarded) hash(root *clientv3.Client) uint32 {
	s.T.Helper()
	resp, err := root.HashKV(s.Bound(), s.Addr, 0)
	return harness.Must(s.T, resp, err).Hash
}

// A05: a lease with keys of one user is closed to another, also to be put keys on
// inside a transaction, and open to root.
func TestLeasesOfOtherUsers(t *testing.T) {
	s := serveUsers(t)
	s.member("u1", mayBoth, "a", "b")
	s.member("u2", mayBoth, "b", "c")
	s.enable()
	_, err := s.Lease.LeaseGrant(s.as("u1"), &pb.LeaseGrantRequest{ID: 7, TTL: 600})
	harness.Must(t, 7, err)
	put := func(user, key string) error {
		_, err := s.KV.Put(s.as(user), &pb.PutRequest{Key: []byte(key), Lease: 7})
		return err
	}
	txn := func(user, key string, failure bool) error {
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Lease: 7}}}
		nested := &pb.TxnRequest{Success: []*pb.RequestOp{op}}
		if failure {
			nested = &pb.TxnRequest{Failure: []*pb.RequestOp{op}}
		}
		_, err := s.KV.Txn(s.as(user), &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}}}})
		return err
	}
	ttl := func(user string, keys bool) error {
		_, err := s.Lease.LeaseTimeToLive(s.as(user), &pb.LeaseTimeToLiveRequest{ID: 7, Keys: keys})
		return err
	}
	keep := func(user string) error {
		stream, err := s.Lease.LeaseKeepAlive(s.as(user))
		if err == nil {
			err = stream.Send(&pb.LeaseKeepAliveRequest{ID: 7})
		}
		harness.Must(t, user, err)
		_, err = stream.Recv()
		return err
	}
	list := func(user string) error {
		_, err := s.Lease.LeaseLeases(s.as(user), &pb.LeaseLeasesRequest{})
		return err
	}
	revoke := func(user string) error {
		_, err := s.Lease.LeaseRevoke(s.as(user), &pb.LeaseRevokeRequest{ID: 7})
		return err
	}
	harness.WantStatus(t, "a lease without keys takes anyone's", put("u1", "a1"), nil)
	for _, tc := range []struct {
		what string
		err  error
		want error
	}{
		{"u2 asks for the TTL", ttl("u2", false), nil},
		{"u2 asks for the keys", ttl("u2", true), errDenied},
		{"u2 lists the leases", list("u2"), errDenied},
		{"u2 keeps it alive", keep("u2"), errDenied},
		{"u2 puts a key on it", put("u2", "b1"), errDenied},
		{"u2 puts a key on it in a transaction", txn("u2", "b1", false), errDenied},
		{"u2 puts a key on it in a branch not taken", txn("u2", "b1", true), errDenied},
		{"u2 revokes it", revoke("u2"), errDenied},
		{"nobody revokes it", revoke(""), rpctypes.ErrGRPCUserEmpty},
		{"u1 asks for the keys", ttl("u1", true), nil},
		{"u1 lists the leases", list("u1"), nil},
		{"u1 keeps it alive", keep("u1"), nil},
		{"u1 puts a key on it", put("u1", "a2"), nil},
		{"root asks for the keys", ttl("root", true), nil},
		{"root lists the leases", list("root"), nil},
		{"root keeps it alive", keep("root"), nil},
		{"root puts a key on it", put("root", "b2"), nil},
		{"u1 puts a key on what is root's too now", put("u1", "a3"), errDenied},
		{"u1 revokes what is root's too now", revoke("u1"), errDenied},
		{"root revokes it", revoke("root"), nil},
	} {
		harness.WantStatus(t, tc.what, tc.err, tc.want)
	}
}

// A07: rights to ranges, for reads and watches alike.
func TestRangePermissions(t *testing.T) {
	s := serveUsers(t)
	s.member("u", mayRead, "a", "b")
	s.addRole("root")
	s.permit("root", mayRead, "a", "b")
	s.enable()
	ok := error(nil)
	for _, tc := range []struct {
		key, end string
		want     error
	}{
		{"a", "", ok},
		{"a", "b", ok},
		{"a", "c", errDenied},
		{"a", "\x00", errDenied},
		{"a", clientv3.GetPrefixRangeEnd("a"), ok},
		{"b", "", errDenied},
		{"a\xff", "", ok},
		{"a\xff", "b", ok},
		{"\x00", "\x00", errDenied},
		{"A", "b", errDenied},
	} {
		name := fmt.Sprintf("%q to %q", tc.key, tc.end)
		for user, want := range map[string]error{"u": tc.want, "root": nil, "": rpctypes.ErrGRPCUserEmpty} {
			r := &pb.RangeRequest{Key: []byte(tc.key), RangeEnd: []byte(tc.end)}
			_, err := s.KV.Range(s.as(user), r)
			harness.WantStatus(t, "get of "+name+" by "+user, err, want)
			stream, err := s.KV.RangeStream(s.as(user), r)
			harness.Must(t, name, err)
			_, err = stream.Recv()
			harness.WantStatus(t, "stream of "+name+" by "+user, err, want)
			w := s.watchAs(user)
			w.Create(&pb.WatchCreateRequest{Key: r.Key, RangeEnd: r.RangeEnd})
			if resp := w.Next(); (want != nil) != resp.Canceled || want != nil && resp.CancelReason != want.Error() {
				t.Errorf("watch of %s by %s: %v, want %v", name, user, resp, want)
			}
		}
	}
}

// watchAs opens a watch stream of a user.
func (s *guarded) watchAs(user string) *harness.WatchStream {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.as(user))
	s.T.Cleanup(cancel)
	stream, err := s.Watch.Watch(ctx)
	return &harness.WatchStream{T: s.T, Stream: harness.Must(s.T, stream, err), Stop: cancel}
}

// A watch is checked on the range as it was asked for. Were "from this key on", or
// the missing key, turned into the store's form before, the right to one key would
// show all keys behind it.
func TestWatchIsCheckedOnTheRawRange(t *testing.T) {
	s := serveUsers(t)
	s.member("one", mayRead, "a", "")
	s.member("lowest", mayRead, "\x00", "")
	s.member("all", mayRead, "\x00", "\x00")
	s.enable()
	for _, tc := range []struct {
		user, key, end string
		ok             bool
	}{
		{"one", "a", "", true},
		{"one", "a", "\x00", false},
		{"one", "a", "a\x00", true},
		{"one", "a", "a\x00\x00", false},
		{"one", "", "", false},
		{"one", "", "\x00", false},
		{"lowest", "", "", true},
		{"lowest", "\x00", "", true},
		{"lowest", "", "\x00", false},
		{"lowest", "\x00", "\x00", false},
		{"all", "", "\x00", true},
		{"all", "a", "\x00", true},
		{"all", "\xff", "", true},
	} {
		w := s.watchAs(tc.user)
		w.Create(&pb.WatchCreateRequest{Key: []byte(tc.key), RangeEnd: []byte(tc.end)})
		if resp := w.Next(); resp.Canceled == tc.ok {
			t.Errorf("watch of %q to %q by %s: %v", tc.key, tc.end, tc.user, resp)
		}
		if tc.key == "" {
			continue
		}
		r := &pb.RangeRequest{Key: []byte(tc.key), RangeEnd: []byte(tc.end)}
		if _, err := s.KV.Range(s.as(tc.user), r); (err == nil) != tc.ok {
			t.Errorf("get of %q to %q by %s: %v", tc.key, tc.end, tc.user, err)
		}
	}
}

// What tells of the value before, or puts keys on a lease, needs the same rights
// inside of transactions as outside, at any depth.
func TestNestedTransactionsAreChecked(t *testing.T) {
	s := serveUsers(t)
	s.member("u", mayWrite, "w", "")
	s.permit("u", mayRead, "r", "")
	s.enable()
	secret := []byte("secret")
	put := &pb.PutRequest{Key: []byte("w"), PrevKv: true}
	del := &pb.DeleteRangeRequest{Key: []byte("w"), PrevKv: true}
	_, err := s.KV.Put(s.as("u"), put)
	harness.WantStatus(t, "put that answers the value before", err, rpctypes.ErrGRPCPermissionDenied)
	_, err = s.KV.DeleteRange(s.as("u"), del)
	harness.WantStatus(t, "delete that answers the value before", err, rpctypes.ErrGRPCPermissionDenied)
	for name, op := range map[string]*pb.RequestOp{
		"get":                          {Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: secret}}},
		"put":                          {Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: secret}}},
		"delete":                       {Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: secret}}},
		"compare":                      {Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Compare: []*pb.Compare{{Key: secret}}}}},
		"put with the value before":    {Request: &pb.RequestOp_RequestPut{RequestPut: put}},
		"delete with the value before": {Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: del}},
	} {
		r := &pb.TxnRequest{Success: []*pb.RequestOp{op}}
		for depth := range 3 {
			_, err := s.KV.Txn(s.as("u"), r)
			harness.WantStatus(t, fmt.Sprintf("%s at depth %d", name, depth), err, rpctypes.ErrGRPCPermissionDenied)
			nested := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
			r = &pb.TxnRequest{Failure: []*pb.RequestOp{nested}}
			if depth == 1 {
				r = &pb.TxnRequest{Success: []*pb.RequestOp{nested}}
			}
		}
	}
	resp, err := s.KV.Range(s.as("root"), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if harness.Must(t, resp, err).Count != 0 {
		t.Errorf("refused transactions wrote %v", resp.Kvs)
	}
}

// G09, by gRPC: a call with a bad token is answered, and the connection goes on.
func TestBadTokenKeepsTheConnection(t *testing.T) {
	s := serveUsers(t)
	s.enable()
	token := s.token("root")
	var dials atomic.Int64
	conn := s.Connect(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}))
	kv := pb.NewKVClient(conn)
	get := func(field, value string) error {
		_, err := kv.Range(metadata.AppendToOutgoingContext(s.Bound(), field, value), &pb.RangeRequest{Key: []byte("k")})
		return err
	}
	for range 3 {
		harness.WantStatus(t, "no token", get("other", "x"), rpctypes.ErrGRPCUserEmpty)
		harness.WantStatus(t, "a bad token", get("authorization", "none"), rpctypes.ErrGRPCInvalidAuthToken)
		harness.WantStatus(t, "a bad token", get("token", ""), rpctypes.ErrGRPCInvalidAuthToken)
		harness.WantStatus(t, "a good token", get("authorization", token), nil)
		harness.WantStatus(t, "a good token of a bearer", get("authorization", "Bearer "+token), nil)
		harness.WantStatus(t, "a good token in the other field", get("token", token), nil)
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// clientv3 with name and password goes on over all changes of users that leave it
// its rights: reads, writes, leases, watches, locks.
func TestClientLogsInAgain(t *testing.T) {
	for name, flag := range map[string]string{"simple": "--auth-token=simple", "jwt": harness.JWTFlag(t)} {
		t.Run(name, func(t *testing.T) {
			s := serveUsers(t, flag)
			s.member("u", mayBoth, "k", "l")
			s.enable()
			c, root := s.login("u"), s.login("root")
			watched := c.Watch(s.Bound(), "k", clientv3.WithPrefix())
			session, err := concurrency.NewSession(c, concurrency.WithTTL(60))
			harness.Must(t, session, err)
			for i := range 5 {
				if _, err := c.Put(s.Bound(), "k", "v"); err != nil {
					t.Errorf("round %d: put: %v", i, err)
				}
				if r := <-watched; r.Err() != nil || len(r.Events) == 0 {
					t.Errorf("round %d: watch: %v", i, r)
				}
				lock := concurrency.NewMutex(session, "k/lock")
				if err := lock.Lock(s.Bound()); err != nil {
					t.Errorf("round %d: lock: %v", i, err)
				} else if err := lock.Unlock(s.Bound()); err != nil {
					t.Errorf("round %d: unlock: %v", i, err)
				}
				for range 2 {
					if r := <-watched; r.Err() != nil {
						t.Errorf("round %d: watch: %v", i, r)
					}
				}
				changeUsers(t, root, i)
				// The same password again still voids the user's tokens.
				if _, err := root.UserChangePassword(s.Bound(), "u", "u"); err != nil {
					t.Errorf("round %d: change password: %v", i, err)
				}
				if _, err := c.Get(s.Bound(), "k"); err != nil {
					t.Errorf("round %d: get: %v", i, err)
				}
			}
			if _, err := root.UserChangePassword(s.Bound(), "u", "other"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Get(s.Bound(), "k"); !errors.Is(err, rpctypes.ErrAuthFailed) && !errors.Is(err, rpctypes.ErrInvalidAuthToken) {
				t.Errorf("get after another password: %v", err)
			}
		})
	}
}

// Health checks and the ends of leases are the server's own business.
func TestServerNeedsNoUser(t *testing.T) {
	s := serveUsers(t)
	s.enable()
	for _, path := range []string{"/health", "/livez", "/readyz"} {
		resp, err := http.Get("http://" + s.Addr + path)
		if harness.Must(t, resp, err).StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
		resp.Body.Close()
	}
	// A lease ends by itself, with its keys, whoever may write them.
	_, err := s.Lease.LeaseGrant(s.as("root"), &pb.LeaseGrantRequest{ID: 7, TTL: 2})
	harness.Must(t, 7, err)
	_, err = s.KV.Put(s.as("root"), &pb.PutRequest{Key: []byte("k"), Lease: 7})
	harness.Must(t, 7, err)
	w := s.watchAs("root")
	w.Create(&pb.WatchCreateRequest{Key: []byte("k")})
	w.Created()
	if r := w.Next(); len(r.Events) != 1 || r.Events[0].Type != mvccpb.Event_DELETE {
		t.Errorf("the end of a lease: %v", r)
	}
}
