package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// freshAuthRevision is the revision of an auth store that was never changed.
const freshAuthRevision = 1

var errNoAuth = unimplemented("latchkey: authentication is not available yet")

// authService is etcd's Auth service on a server without users: authentication is
// off and cannot be switched on.
type authService struct {
	pb.UnsafeAuthServer

	headers headers
}

var _ pb.AuthServer = (*authService)(nil)

// AuthStatus says that authentication is off.
func (s *authService) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: s.headers.current(), AuthRevision: freshAuthRevision}, nil
}

// Authenticate says that authentication is off.
func (s *authService) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, errAuthNotEnabled
}

// AuthEnable is not available yet.
func (s *authService) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, errNoAuth
}

// AuthDisable is not available yet.
func (s *authService) AuthDisable(context.Context, *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	return nil, errNoAuth
}

// UserAdd is not available yet.
func (s *authService) UserAdd(context.Context, *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	return nil, errNoAuth
}

// UserGet is not available yet.
func (s *authService) UserGet(context.Context, *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return nil, errNoAuth
}

// UserList is not available yet.
func (s *authService) UserList(context.Context, *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return nil, errNoAuth
}

// UserDelete is not available yet.
func (s *authService) UserDelete(context.Context, *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return nil, errNoAuth
}

// UserChangePassword is not available yet.
func (s *authService) UserChangePassword(
	context.Context, *pb.AuthUserChangePasswordRequest,
) (*pb.AuthUserChangePasswordResponse, error) {
	return nil, errNoAuth
}

// UserGrantRole is not available yet.
func (s *authService) UserGrantRole(
	context.Context, *pb.AuthUserGrantRoleRequest,
) (*pb.AuthUserGrantRoleResponse, error) {
	return nil, errNoAuth
}

// UserRevokeRole is not available yet.
func (s *authService) UserRevokeRole(
	context.Context, *pb.AuthUserRevokeRoleRequest,
) (*pb.AuthUserRevokeRoleResponse, error) {
	return nil, errNoAuth
}

// RoleAdd is not available yet.
func (s *authService) RoleAdd(context.Context, *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return nil, errNoAuth
}

// RoleGet is not available yet.
func (s *authService) RoleGet(context.Context, *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return nil, errNoAuth
}

// RoleList is not available yet.
func (s *authService) RoleList(context.Context, *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return nil, errNoAuth
}

// RoleDelete is not available yet.
func (s *authService) RoleDelete(context.Context, *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return nil, errNoAuth
}

// RoleGrantPermission is not available yet.
func (s *authService) RoleGrantPermission(
	context.Context, *pb.AuthRoleGrantPermissionRequest,
) (*pb.AuthRoleGrantPermissionResponse, error) {
	return nil, errNoAuth
}

// RoleRevokePermission is not available yet.
func (s *authService) RoleRevokePermission(
	context.Context, *pb.AuthRoleRevokePermissionRequest,
) (*pb.AuthRoleRevokePermissionResponse, error) {
	return nil, errNoAuth
}
