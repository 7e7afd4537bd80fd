package auth

import "errors"

// What can be wrong with a request, in the order of etcd's list. The texts of those
// that etcd sends without a code of their own are seen by clients.
var (
	// ErrRootUserNotExist and ErrRootRoleNotExist refuse to enable authentication
	// where nobody could disable it again.
	ErrRootUserNotExist = errors.New("auth: root user does not exist")
	ErrRootRoleNotExist = errors.New("auth: root user does not have root role")

	ErrUserAlreadyExist = errors.New("auth: user already exists")
	// ErrUserEmpty is also what a request without a user gets.
	ErrUserEmpty        = errors.New("auth: user name is empty")
	ErrUserNotFound     = errors.New("auth: user not found")
	ErrRoleAlreadyExist = errors.New("auth: role already exists")
	ErrRoleNotFound     = errors.New("auth: role not found")
	ErrRoleEmpty        = errors.New("auth: role name is empty")

	ErrPermissionNotGiven   = errors.New("auth: permission not given")
	ErrPermissionDenied     = errors.New("auth: permission denied")
	ErrRoleNotGranted       = errors.New("auth: role is not granted to the user")
	ErrPermissionNotGranted = errors.New("auth: permission is not granted to the role")

	ErrFailed = errors.New("auth: authentication failed, invalid user ID or password")
	// ErrNoPasswordUser is sent to clients as it is.
	ErrNoPasswordUser = errors.New("auth: authentication failed, password was given for no password user")
	ErrNotEnabled     = errors.New("auth: authentication is not enabled")
	// ErrOldRevision says that users or roles have changed since the sender's
	// rights were established.
	ErrOldRevision  = errors.New("auth: revision in header is old")
	ErrInvalidToken = errors.New("auth: invalid auth token")
	// ErrInvalidManagement refuses what would take away root's rights, and a
	// permission for a range that is none.
	ErrInvalidManagement = errors.New("auth: invalid auth management")
	// ErrVerifyOnly is sent to clients as it is.
	ErrVerifyOnly = errors.New("auth: token signing attempted with verify-only key")
)

// ErrOptions is returned for the description of a token provider that can't be
// understood or used.
var ErrOptions = errors.New("auth: invalid auth options")
