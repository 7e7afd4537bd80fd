package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// guarded is a server with users. Their passwords are their names.
type guarded struct {
	*served
	auth pb.AuthClient
}

const (
	mayRead  = authpb.Permission_READ
	mayWrite = authpb.Permission_WRITE
	mayBoth  = authpb.Permission_READWRITE
)

// serveUsers starts a server with root, who has all rights. Nothing is checked yet.
func serveUsers(tb testing.TB, args ...string) *guarded {
	tb.Helper()
	s := &guarded{served: serve(tb, append(args, "--bcrypt-cost", "4")...)}
	s.auth = pb.NewAuthClient(s.conn)
	s.addUser("root")
	s.grantRole("root", "root")
	return s
}

// jwtFlag returns the flag for tokens signed with a key of its own.
func jwtFlag(tb testing.TB) string {
	tb.Helper()
	key := filepath.Join(tb.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("secret", 10)), 0o600); err != nil {
		tb.Fatal(err)
	}
	return "--auth-token=jwt,sign-method=HS256,ttl=1h,priv-key=" + key
}

// must fails the test where a call has failed.
func must[Resp any](tb testing.TB, resp Resp, err error) Resp {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

// as returns a context for one call with a fresh token of a user; no name stands
// for no token.
func (s *guarded) as(user string) context.Context {
	s.t.Helper()
	if user == "" {
		return s.bound()
	}
	return withToken(s.bound(), s.token(user))
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "token", token)
}

func (s *guarded) token(user string) string {
	s.t.Helper()
	resp, err := s.auth.Authenticate(s.bound(), &pb.AuthenticateRequest{Name: user, Password: user})
	return must(s.t, resp, err).Token
}

// admin returns a context for a change of users: root's, once requests are checked.
func (s *guarded) admin() context.Context {
	s.t.Helper()
	status, err := s.auth.AuthStatus(s.bound(), &pb.AuthStatusRequest{})
	if !must(s.t, status, err).Enabled {
		return s.bound()
	}
	return s.as("root")
}

func (s *guarded) addUser(name string) {
	s.t.Helper()
	_, err := s.auth.UserAdd(s.admin(), &pb.AuthUserAddRequest{Name: name, Password: name})
	must(s.t, name, err)
}

func (s *guarded) addRole(name string) {
	s.t.Helper()
	_, err := s.auth.RoleAdd(s.admin(), &pb.AuthRoleAddRequest{Name: name})
	must(s.t, name, err)
}

func (s *guarded) grantRole(user, role string) {
	s.t.Helper()
	_, err := s.auth.UserGrantRole(s.admin(), &pb.AuthUserGrantRoleRequest{User: user, Role: role})
	must(s.t, user, err)
}

func (s *guarded) permit(role string, right authpb.Permission_Type, key, end string) {
	s.t.Helper()
	_, err := s.auth.RoleGrantPermission(s.admin(), &pb.AuthRoleGrantPermissionRequest{
		Name: role, Perm: &authpb.Permission{PermType: right, Key: []byte(key), RangeEnd: []byte(end)},
	})
	must(s.t, role, err)
}

// member adds a user with a role of the same name that has one right.
func (s *guarded) member(name string, right authpb.Permission_Type, key, end string) {
	s.t.Helper()
	s.addUser(name)
	s.addRole(name)
	s.grantRole(name, name)
	s.permit(name, right, key, end)
}

// enable has requests checked from now on.
func (s *guarded) enable() {
	s.t.Helper()
	_, err := s.auth.AuthEnable(s.bound(), &pb.AuthEnableRequest{})
	must(s.t, "enable", err)
}

// login returns a clientv3 that logs in by itself, with name and password.
func (s *guarded) login(user string) *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), Username: user, Password: user,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(fastReconnect)},
	})
	must(s.t, user, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}
