package cases

import (
	"context"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/latchkey-db/latchkey/e2e/harness"
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
	s.auth = pb.NewAuthClient(s.Conn)
	s.addUser("root")
	s.grantRole("root", "root")
	return s
}

// as returns a context for one call with a fresh token of a user; no name stands
// for no token.
func (s *guarded) as(user string) context.Context {
	s.T.Helper()
	if user == "" {
		return s.Bound()
	}
	return withToken(s.Bound(), s.token(user))
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "token", token)
}

func (s *guarded) token(user string) string {
	s.T.Helper()
	resp, err := s.auth.Authenticate(s.Bound(), &pb.AuthenticateRequest{Name: user, Password: user})
	return harness.Must(s.T, resp, err).Token
}

// admin returns a context for a change of users: root's, once requests are checked.
func (s *guarded) admin() context.Context {
	s.T.Helper()
	status, err := s.auth.AuthStatus(s.Bound(), &pb.AuthStatusRequest{})
	if !harness.Must(s.T, status, err).Enabled {
		return s.Bound()
	}
	return s.as("root")
}

func (s *guarded) addUser(name string) {
	s.T.Helper()
	_, err := s.auth.UserAdd(s.admin(), &pb.AuthUserAddRequest{Name: name, Password: name})
	harness.Must(s.T, name, err)
}

func (s *guarded) addRole(name string) {
	s.T.Helper()
	_, err := s.auth.RoleAdd(s.admin(), &pb.AuthRoleAddRequest{Name: name})
	harness.Must(s.T, name, err)
}

func (s *guarded) grantRole(user, role string) {
	s.T.Helper()
	_, err := s.auth.UserGrantRole(s.admin(), &pb.AuthUserGrantRoleRequest{User: user, Role: role})
	harness.Must(s.T, user, err)
}

func (s *guarded) permit(role string, right authpb.Permission_Type, key, end string) {
	s.T.Helper()
	_, err := s.auth.RoleGrantPermission(s.admin(), &pb.AuthRoleGrantPermissionRequest{
		Name: role, Perm: &authpb.Permission{PermType: right, Key: []byte(key), RangeEnd: []byte(end)},
	})
	harness.Must(s.T, role, err)
}

// member adds a user with a role of the same name that has one right.
func (s *guarded) member(name string, right authpb.Permission_Type, key, end string) {
	s.T.Helper()
	s.addUser(name)
	s.addRole(name)
	s.grantRole(name, name)
	s.permit(name, right, key, end)
}

// enable has requests checked from now on.
func (s *guarded) enable() {
	s.T.Helper()
	_, err := s.auth.AuthEnable(s.Bound(), &pb.AuthEnableRequest{})
	harness.Must(s.T, "enable", err)
}

// login returns a clientv3 that logs in by itself, with name and password.
func (s *guarded) login(user string) *clientv3.Client {
	s.T.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.Addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), Username: user, Password: user,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(harness.FastReconnect)},
	})
	harness.Must(s.T, user, err)
	s.T.Cleanup(func() { c.Close() })
	return c
}
