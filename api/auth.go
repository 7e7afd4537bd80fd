package api

import (
	"context"
	"log/slog"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
)

// authService is etcd's Auth service over Users.
type authService struct {
	pb.UnsafeAuthServer

	users   Users
	tokens  auth.Tokens
	gate    *gate
	headers headers
	rules   *rules
	// cost is what a password's hash costs.
	cost int
	log  *slog.Logger
}

var _ pb.AuthServer = (*authService)(nil)

// change has users or roles changed for the caller. Whether the caller may is
// judged where the change applies.
func (s *authService) change(ctx context.Context, r *pb.InternalRaftRequest) (*pb.ResponseHeader, error) {
	return checked(ctx, s.gate, needNothing, func(ctx context.Context) (*pb.ResponseHeader, error) {
		id := auth.From(ctx)
		r.Header = nil
		if err := s.rules.entrySize(id, r); err != nil {
			return nil, err
		}
		r.Header = &pb.RequestHeader{Username: id.User, AuthRevision: id.Revision}
		if err := s.users.ChangeUsers(ctx, r); err != nil {
			return nil, err
		}
		return s.headers.current(), nil
	})
}

// read answers from the newest users and roles. r is for the limit of size alone.
func read[Response any](
	ctx context.Context, s *authService, r *pb.InternalRaftRequest, answer func(*auth.State, auth.Identity) (Response, error),
) (Response, error) {
	return checked(ctx, s.gate, needNothing, func(ctx context.Context) (none Response, err error) {
		id := auth.From(ctx)
		if err := s.rules.entrySize(id, r); err != nil {
			return none, err
		}
		users, err := s.users.ConfirmUsers(ctx)
		if err != nil {
			return none, err
		}
		return answer(users, id)
	})
}

// AuthEnable begins to check requests.
func (s *authService) AuthEnable(ctx context.Context, r *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthEnable: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthEnableResponse{Header: header}, nil
}

// AuthDisable ceases to check requests.
func (s *authService) AuthDisable(ctx context.Context, r *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthDisable: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthDisableResponse{Header: header}, nil
}

// AuthStatus tells whether requests are checked, to anyone.
func (s *authService) AuthStatus(ctx context.Context, r *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return read(ctx, s, &pb.InternalRaftRequest{AuthStatus: r},
		func(users *auth.State, _ auth.Identity) (*pb.AuthStatusResponse, error) {
			return &pb.AuthStatusResponse{
				Header: s.headers.current(), Enabled: users.Enabled, AuthRevision: users.Revision,
			}, nil
		})
}

// Authenticate gives a token for a password. The password must still have been the
// right one when the token was there.
func (s *authService) Authenticate(ctx context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	for {
		users, err := s.users.ConfirmUsers(ctx)
		if err != nil {
			return nil, toStatus(err)
		}
		revision, err := users.Verify(r.GetName(), r.GetPassword())
		if err != nil {
			if users.Enabled {
				s.log.LogAttrs(ctx, slog.LevelWarn, "authentication failed",
					slog.String("user", r.GetName()), slog.Any("error", err))
			}
			return nil, toStatus(err)
		}
		token, err := s.tokens.Issue(ctx, r.GetName(), revision, s.users.Login)
		if err != nil {
			return nil, toStatus(err)
		}
		now, err := s.users.Users(ctx)
		if err != nil {
			return nil, toStatus(err)
		}
		if now.Revision == revision {
			return &pb.AuthenticateResponse{Header: s.headers.current(), Token: token}, nil
		}
	}
}

// hash returns the hash of a password for a caller who may set one.
func (s *authService) hash(ctx context.Context, password string) (string, error) {
	// The order is the one in which etcd finds the faults, without hashing for
	// those who may not ask for it.
	if err := auth.CheckPassword(password); err != nil {
		return "", toStatus(err)
	}
	if err := s.gate.require(ctx, needRoot); err != nil {
		return "", err
	}
	hash, err := auth.Hash(password, s.cost)
	return hash, toStatus(err)
}

// UserAdd adds a user.
func (s *authService) UserAdd(ctx context.Context, r *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	add := &pb.AuthUserAddRequest{Name: r.GetName(), Options: r.GetOptions()}
	if !r.GetOptions().GetNoPassword() {
		var err error
		if add.HashedPassword, err = s.hash(ctx, r.GetPassword()); err != nil {
			return nil, err
		}
	}
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthUserAdd: add})
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserAddResponse{Header: header}, nil
}

// UserGet tells the roles of a user.
func (s *authService) UserGet(ctx context.Context, r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return read(ctx, s, &pb.InternalRaftRequest{AuthUserGet: r},
		func(users *auth.State, id auth.Identity) (*pb.AuthUserGetResponse, error) {
			resp, err := users.UserGet(id, r)
			if err != nil {
				return nil, err
			}
			resp.Header = s.headers.current()
			return resp, nil
		})
}

// UserList lists the users.
func (s *authService) UserList(ctx context.Context, r *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return read(ctx, s, &pb.InternalRaftRequest{AuthUserList: r},
		func(users *auth.State, id auth.Identity) (*pb.AuthUserListResponse, error) {
			resp, err := users.UserList(id)
			if err != nil {
				return nil, err
			}
			resp.Header = s.headers.current()
			return resp, nil
		})
}

// UserDelete deletes a user.
func (s *authService) UserDelete(ctx context.Context, r *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthUserDelete: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserDeleteResponse{Header: header}, nil
}

// UserChangePassword gives a user another password, or a hash that the client made.
func (s *authService) UserChangePassword(
	ctx context.Context, r *pb.AuthUserChangePasswordRequest,
) (*pb.AuthUserChangePasswordResponse, error) {
	change := &pb.AuthUserChangePasswordRequest{Name: r.GetName(), HashedPassword: r.GetHashedPassword()}
	if r.GetPassword() != "" {
		var err error
		if change.HashedPassword, err = s.hash(ctx, r.GetPassword()); err != nil {
			return nil, err
		}
	}
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthUserChangePassword: change})
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserChangePasswordResponse{Header: header}, nil
}

// UserGrantRole gives a user a role.
func (s *authService) UserGrantRole(
	ctx context.Context, r *pb.AuthUserGrantRoleRequest,
) (*pb.AuthUserGrantRoleResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthUserGrantRole: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserGrantRoleResponse{Header: header}, nil
}

// UserRevokeRole takes a role from a user.
func (s *authService) UserRevokeRole(
	ctx context.Context, r *pb.AuthUserRevokeRoleRequest,
) (*pb.AuthUserRevokeRoleResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthUserRevokeRole: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserRevokeRoleResponse{Header: header}, nil
}

// RoleAdd adds a role.
func (s *authService) RoleAdd(ctx context.Context, r *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthRoleAdd: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthRoleAddResponse{Header: header}, nil
}

// RoleGet tells the permissions of a role.
func (s *authService) RoleGet(ctx context.Context, r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return read(ctx, s, &pb.InternalRaftRequest{AuthRoleGet: r},
		func(users *auth.State, id auth.Identity) (*pb.AuthRoleGetResponse, error) {
			resp, err := users.RoleGet(id, r)
			if err != nil {
				return nil, err
			}
			resp.Header = s.headers.current()
			return resp, nil
		})
}

// RoleList lists the roles.
func (s *authService) RoleList(ctx context.Context, r *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return read(ctx, s, &pb.InternalRaftRequest{AuthRoleList: r},
		func(users *auth.State, id auth.Identity) (*pb.AuthRoleListResponse, error) {
			resp, err := users.RoleList(id)
			if err != nil {
				return nil, err
			}
			resp.Header = s.headers.current()
			return resp, nil
		})
}

// RoleDelete deletes a role and takes it from all users.
func (s *authService) RoleDelete(ctx context.Context, r *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthRoleDelete: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthRoleDeleteResponse{Header: header}, nil
}

// RoleGrantPermission gives a role a right to a range.
func (s *authService) RoleGrantPermission(
	ctx context.Context, r *pb.AuthRoleGrantPermissionRequest,
) (*pb.AuthRoleGrantPermissionResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthRoleGrantPermission: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthRoleGrantPermissionResponse{Header: header}, nil
}

// RoleRevokePermission takes the rights to a range from a role.
func (s *authService) RoleRevokePermission(
	ctx context.Context, r *pb.AuthRoleRevokePermissionRequest,
) (*pb.AuthRoleRevokePermissionResponse, error) {
	header, err := s.change(ctx, &pb.InternalRaftRequest{AuthRoleRevokePermission: r})
	if err != nil {
		return nil, err
	}
	return &pb.AuthRoleRevokePermissionResponse{Header: header}, nil
}
