package differential

import (
	"context"
	"net/http"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// logins are tokens by user and server.
type logins map[string]map[*server]string

// login keeps a fresh token of a user.
func (l logins) login(t *testing.T, s *server, user string) {
	t.Helper()
	resp, err := s.auth.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: user, Password: "p"})
	if err != nil {
		t.Fatalf("%s: log in %s: %v", s.name, user, err)
	}
	if l[user] == nil {
		l[user] = make(map[*server]string)
	}
	l[user][s] = resp.GetToken()
}

// as returns a call with the token of a user.
func (l logins) as(user string, r refusal) refusal {
	call := r.call
	r.call = func(ctx context.Context, s *server) error {
		return call(metadata.AppendToOutgoingContext(ctx, "token", l[user][s]), s)
	}
	r.name += ", as " + user
	return r
}

// authRefused calls the Auth service.
func authRefused[Request, Response any](
	name string, r Request, call func(pb.AuthClient, context.Context, Request, ...grpc.CallOption) (Response, error),
	code codes.Code, text string,
) refusal {
	return refusal{name, func(ctx context.Context, s *server) error {
		_, err := call(s.auth, ctx, r)
		return err
	}, code, text}
}

// do makes calls that must succeed.
func do(t *testing.T, s *server, calls ...refusal) {
	t.Helper()
	for _, c := range calls {
		if err := c.call(t.Context(), s); err != nil {
			t.Fatalf("%s: %s: %v", s.name, c.name, err)
		}
	}
}

// userStages are the stages of a server whose users come into being: without root,
// with a root that has no role, with users that are not checked yet, and with users
// that are.
func userStages() []stage {
	const failed, invalid = codes.FailedPrecondition, codes.InvalidArgument
	tokens := make(logins)
	enable := authRefused("AuthEnable", &pb.AuthEnableRequest{}, pb.AuthClient.AuthEnable, failed, "")
	refused := func(r refusal, code codes.Code, text string) refusal {
		r.code, r.text = code, text
		return r
	}
	return []stage{
		{
			refusals: []refusal{
				refused(enable, failed, "etcdserver: root user does not exist"),
				authRefused("Authenticate: off", &pb.AuthenticateRequest{Name: "root", Password: "x"}, pb.AuthClient.Authenticate,
					failed, "etcdserver: authentication is not enabled"),
			},
		},
		{
			prepare: func(t *testing.T, s *server) {
				t.Helper()
				do(t, s, userAdd("root"))
			},
			refusals: []refusal{refused(enable, failed, "etcdserver: root user does not have root role")},
		},
		{
			prepare: func(t *testing.T, s *server) {
				t.Helper()
				do(t, s, roleAdd("root"), userAdd("u"), roleAdd("r"), roleGrant("root", "root"), roleGrant("u", "r"))
			},
			refusals: unenforced(),
		},
		{
			prepare: func(t *testing.T, s *server) {
				t.Helper()
				do(t, s, enable)
				tokens.login(t, s, "u")
				tokens.login(t, s, "root")
			},
			refusals: enforced(tokens),
		},
		{
			prepare: func(t *testing.T, s *server) {
				t.Helper()
				do(t, s, tokens.as("root", roleAdd("later")))
			},
			refusals: []refusal{
				tokens.as("u", rangeRefused("token of before", &pb.RangeRequest{Key: keyA}, invalid, "etcdserver: revision of auth store is old")),
				tokens.as("root", putRefused("token of before", &pb.PutRequest{Key: keyA}, invalid, "etcdserver: revision of auth store is old")),
			},
		},
	}
}

func userAdd(name string) refusal {
	return authRefused("UserAdd", &pb.AuthUserAddRequest{Name: name, Password: "p"}, pb.AuthClient.UserAdd, codes.OK, "")
}

func roleAdd(name string) refusal {
	return authRefused("RoleAdd", &pb.AuthRoleAddRequest{Name: name}, pb.AuthClient.RoleAdd, codes.OK, "")
}

func roleGrant(user, role string) refusal {
	return authRefused("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: user, Role: role}, pb.AuthClient.UserGrantRole, codes.OK, "")
}

// unenforced are refusals that need no rights to be checked.
func unenforced() []refusal {
	const failed, invalid = codes.FailedPrecondition, codes.InvalidArgument
	const (
		userThere, userGone = "etcdserver: user name already exists", "etcdserver: user name not found"
		roleThere, roleGone = "etcdserver: role name already exists", "etcdserver: role name not found"
	)
	return []refusal{
		authRefused("UserAdd: there", &pb.AuthUserAddRequest{Name: "u", Password: "p"}, pb.AuthClient.UserAdd, failed, userThere),
		authRefused("UserAdd: no name", &pb.AuthUserAddRequest{Password: "p"}, pb.AuthClient.UserAdd, invalid, "etcdserver: user name is empty"),
		authRefused("UserGet: unknown", &pb.AuthUserGetRequest{Name: "x"}, pb.AuthClient.UserGet, failed, userGone),
		authRefused("UserDelete: unknown", &pb.AuthUserDeleteRequest{Name: "x"}, pb.AuthClient.UserDelete, failed, userGone),
		authRefused("UserChangePassword: unknown", &pb.AuthUserChangePasswordRequest{Name: "x", Password: "p"}, pb.AuthClient.UserChangePassword,
			failed, userGone),
		authRefused("UserGrantRole: unknown user", &pb.AuthUserGrantRoleRequest{User: "x", Role: "r"}, pb.AuthClient.UserGrantRole, failed, userGone),
		authRefused("UserGrantRole: unknown role", &pb.AuthUserGrantRoleRequest{User: "u", Role: "x"}, pb.AuthClient.UserGrantRole, failed, roleGone),
		authRefused("UserRevokeRole: unknown user", &pb.AuthUserRevokeRoleRequest{Name: "x", Role: "r"}, pb.AuthClient.UserRevokeRole, failed, userGone),
		authRefused("UserRevokeRole: not granted", &pb.AuthUserRevokeRoleRequest{Name: "u", Role: "root"}, pb.AuthClient.UserRevokeRole,
			failed, "etcdserver: role is not granted to the user"),
		authRefused("RoleAdd: there", &pb.AuthRoleAddRequest{Name: "r"}, pb.AuthClient.RoleAdd, failed, roleThere),
		authRefused("RoleAdd: no name", &pb.AuthRoleAddRequest{}, pb.AuthClient.RoleAdd, invalid, "etcdserver: role name is empty"),
		authRefused("RoleGet: unknown", &pb.AuthRoleGetRequest{Role: "x"}, pb.AuthClient.RoleGet, failed, roleGone),
		authRefused("RoleDelete: unknown", &pb.AuthRoleDeleteRequest{Role: "x"}, pb.AuthClient.RoleDelete, failed, roleGone),
		authRefused("RoleGrantPermission: none", &pb.AuthRoleGrantPermissionRequest{Name: "r"}, pb.AuthClient.RoleGrantPermission,
			invalid, "etcdserver: permission not given"),
		authRefused("RoleGrantPermission: bad range", &pb.AuthRoleGrantPermissionRequest{
			Name: "r", Perm: &authpb.Permission{Key: []byte("b"), RangeEnd: keyA},
		}, pb.AuthClient.RoleGrantPermission, invalid, "etcdserver: invalid auth management"),
		authRefused("RoleRevokePermission: not granted", &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: keyA}, pb.AuthClient.RoleRevokePermission,
			failed, "etcdserver: permission is not granted to the role"),
		authRefused("RoleRevokePermission: unknown role", &pb.AuthRoleRevokePermissionRequest{Role: "x", Key: keyA}, pb.AuthClient.RoleRevokePermission,
			failed, roleGone),
	}
}

// enforced are refusals of a server that checks rights, of which u has none.
func enforced(tokens logins) []refusal {
	const invalid, denied = codes.InvalidArgument, codes.PermissionDenied
	const (
		noUser, noRight   = "etcdserver: user name is empty", "etcdserver: permission denied"
		badToken, badMgmt = "etcdserver: invalid auth token", "etcdserver: invalid auth management"
		badLogin          = "etcdserver: authentication failed, invalid user ID or password"
	)
	forged := func(r refusal) refusal {
		call := r.call
		r.call = func(ctx context.Context, s *server) error {
			return call(metadata.AppendToOutgoingContext(ctx, "token", "forged"), s)
		}
		return r
	}
	get, set := &pb.RangeRequest{Key: keyA}, &pb.PutRequest{Key: keyA}
	return []refusal{
		authRefused("Authenticate: wrong password", &pb.AuthenticateRequest{Name: "u", Password: "x"}, pb.AuthClient.Authenticate, invalid, badLogin),
		authRefused("Authenticate: unknown user", &pb.AuthenticateRequest{Name: "x", Password: "p"}, pb.AuthClient.Authenticate, invalid, badLogin),
		rangeRefused("no token", get, invalid, noUser),
		putRefused("no token", set, invalid, noUser),
		grantRefused("no token", &pb.LeaseGrantRequest{TTL: 9}, invalid, noUser),
		forged(rangeRefused("forged token", get, codes.Unauthenticated, badToken)),
		forged(putRefused("forged token", set, codes.Unauthenticated, badToken)),
		tokens.as("u", rangeRefused("no right", get, denied, noRight)),
		tokens.as("u", streamRefused("no right", get, denied, noRight)),
		tokens.as("u", putRefused("no right", set, denied, noRight)),
		tokens.as("u", deleteRefused("no right", &pb.DeleteRangeRequest{Key: keyA}, denied, noRight)),
		tokens.as("u", txnRefused("no right", &pb.TxnRequest{Success: []*pb.RequestOp{asPut(set)}}, denied, noRight)),
		tokens.as("u", compactRefused("no root", &pb.CompactionRequest{Revision: 1}, denied, noRight)),
		tokens.as("u", authRefused("UserAdd: no root", &pb.AuthUserAddRequest{Name: "new", Password: "p"}, pb.AuthClient.UserAdd, denied, noRight)),
		tokens.as("root", authRefused("UserDelete: root", &pb.AuthUserDeleteRequest{Name: "root"}, pb.AuthClient.UserDelete, invalid, badMgmt)),
		tokens.as("root", authRefused("RoleDelete: root", &pb.AuthRoleDeleteRequest{Role: "root"}, pb.AuthClient.RoleDelete, invalid, badMgmt)),
		tokens.as("root", authRefused("UserRevokeRole: root of root", &pb.AuthUserRevokeRoleRequest{Name: "root", Role: "root"},
			pb.AuthClient.UserRevokeRole, invalid, badMgmt)),
		watchRefused("no token", "watch refused: rpc error: code = InvalidArgument desc = "+noUser, &pb.WatchCreateRequest{Key: keyA}),
		tokens.as("u", watchRefused("no right", "watch refused: rpc error: code = PermissionDenied desc = "+noRight, &pb.WatchCreateRequest{Key: keyA})),
		posted("no token", "/v3/kv/range", `{"key":"YQ=="}`, `400 {"code":3,"message":"`+noUser+`"}`),
		sent("forged token", http.MethodPost, "/v3/kv/range", `{"key":"YQ=="}`, "forged", `401 {"code":16,"message":"`+badToken+`"}`),
		tokens.sent("u", "no right", "/v3/kv/range", `{"key":"YQ=="}`, `403 {"code":7,"message":"`+noRight+`"}`),
	}
}

// sent calls the JSON API as a user.
func (l logins) sent(user, name, path, body, text string) refusal {
	r := sent(name, http.MethodPost, path, body, "", text)
	r.call = func(ctx context.Context, s *server) error {
		return sent(name, http.MethodPost, path, body, l[user][s], text).call(ctx, s)
	}
	r.name += ", as " + user
	return r
}
