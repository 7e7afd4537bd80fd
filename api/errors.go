package api

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/system"
)

// Statuses that the services answer by themselves. Clients recognise etcd's
// errors by their text, so code and text are etcd's.
var (
	errEmptyKey                = rpctypes.ErrGRPCEmptyKey
	errKeyNotFound             = rpctypes.ErrGRPCKeyNotFound
	errValueProvided           = rpctypes.ErrGRPCValueProvided
	errLeaseProvided           = rpctypes.ErrGRPCLeaseProvided
	errTooManyOps              = rpctypes.ErrGRPCTooManyOps
	errDuplicateKey            = rpctypes.ErrGRPCDuplicateKey
	errInvalidSortOption       = rpctypes.ErrGRPCInvalidSortOption
	errInvalidClientAPIVersion = rpctypes.ErrGRPCInvalidClientAPIVersion
	errRequestTooLarge         = rpctypes.ErrGRPCRequestTooLarge
	errLeaseTTLTooLarge        = rpctypes.ErrGRPCLeaseTTLTooLarge
	errNoSpace                 = rpctypes.ErrGRPCNoSpace
	errCorrupt                 = rpctypes.ErrGRPCCorrupt
	errNoLeader                = rpctypes.ErrGRPCNoLeader
	errNotLeader               = rpctypes.ErrGRPCNotLeader
	errStopped                 = rpctypes.ErrGRPCStopped
	errWatchCanceled           = rpctypes.ErrGRPCWatchCanceled
	errBadLeaderTransferee     = rpctypes.ErrGRPCBadLeaderTransferee
	errMemberBadURLs           = rpctypes.ErrGRPCMemberBadURLs
	errForLearner              = rpctypes.ErrGRPCNotSupportedForLearner
	errDowngradeVersionFormat  = rpctypes.ErrGRPCWrongDowngradeVersionFormat
	errDowngradeVersionTarget  = rpctypes.ErrGRPCInvalidDowngradeTargetVersion

	// etcd sends these with code Unknown, whatever code its client library
	// gives them.
	errTooManyRequests = unknown("etcdserver: too many requests")
	errUnknownMethod   = unknown("etcdserver: unknown method")

	// What a waiter hears whose own key has gone. Lock and Election send every
	// error as Unknown, with etcd's text.
	errLockLost     = unknown("mutex: session is expired")
	errCampaignLost = unknown("election: session is expired")
	errNoLeaderKey  = unknown(`"leader" field must be provided`)

	errStreamSort    = unimplemented("RangeStream does not support custom sort orders")
	errStreamFilter  = unimplemented("RangeStream does not support revision filters")
	errSeveralShards = unimplemented(severalShards)
	errPanic         = status.Error(codes.Internal, "latchkey: internal error")

	errLeaseNotFound = rpctypes.ErrGRPCLeaseNotFound
	errNoSession     = precondition("latchkey: there is no such session")
)

// severalShards is what a write over several shards is told that this node does not carry out. Behind
// it comes where they are divided.
const severalShards = "latchkey: the keys of the request lie on several shards, and writes over several shards are switched off, or not known to all nodes yet"

// Reasons of a created answer that refuses the watch. They travel inside the
// stream, as text.
var (
	reasonCompacted   = rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted)
	reasonEmptyRange  = "mvcc: watcher range is empty"
	reasonDuplicateID = "mvcc: duplicate watch ID provided on the WatchStream"
)

// sentinels says what a client sees of the errors of the layers below.
var sentinels = []struct{ is, wire error }{
	{mvcc.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{mvcc.ErrFutureRev, rpctypes.ErrGRPCFutureRev},
	{mvcc.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
	{mvcc.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{mvcc.ErrEmptyOp, rpctypes.ErrGRPCKeyNotFound},
	{mvcc.ErrCorrupt, rpctypes.ErrGRPCCorrupt},

	{lease.ErrNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{lease.ErrExists, rpctypes.ErrGRPCLeaseExist},

	{auth.ErrRootUserNotExist, rpctypes.ErrGRPCRootUserNotExist},
	{auth.ErrRootRoleNotExist, rpctypes.ErrGRPCRootRoleNotExist},
	{auth.ErrUserAlreadyExist, rpctypes.ErrGRPCUserAlreadyExist},
	{auth.ErrUserEmpty, rpctypes.ErrGRPCUserEmpty},
	{auth.ErrUserNotFound, rpctypes.ErrGRPCUserNotFound},
	{auth.ErrRoleAlreadyExist, rpctypes.ErrGRPCRoleAlreadyExist},
	{auth.ErrRoleNotFound, rpctypes.ErrGRPCRoleNotFound},
	{auth.ErrRoleEmpty, rpctypes.ErrGRPCRoleEmpty},
	{auth.ErrFailed, rpctypes.ErrGRPCAuthFailed},
	{auth.ErrPermissionNotGiven, rpctypes.ErrGRPCPermissionNotGiven},
	{auth.ErrPermissionDenied, rpctypes.ErrGRPCPermissionDenied},
	{auth.ErrRoleNotGranted, rpctypes.ErrGRPCRoleNotGranted},
	{auth.ErrPermissionNotGranted, rpctypes.ErrGRPCPermissionNotGranted},
	{auth.ErrNotEnabled, rpctypes.ErrGRPCAuthNotEnabled},
	{auth.ErrInvalidToken, rpctypes.ErrGRPCInvalidAuthToken},
	{auth.ErrInvalidManagement, rpctypes.ErrGRPCInvalidAuthMgmt},
	{auth.ErrOldRevision, rpctypes.ErrGRPCAuthOldRevision},
	{router.ErrOutdated, rpctypes.ErrGRPCAuthOldRevision},
	{router.ErrSeveralShards, errSeveralShards},

	{system.ErrMemberExists, rpctypes.ErrGRPCMemberExist},
	{system.ErrPeerURLExists, rpctypes.ErrGRPCPeerURLExist},
	{system.ErrTooManyLearners, rpctypes.ErrGRPCTooManyLearners},
	{system.ErrNotMember, rpctypes.ErrGRPCMemberNotFound},
	{system.ErrNotLearner, rpctypes.ErrGRPCMemberNotLearner},
	{system.ErrLearnerBehind, rpctypes.ErrGRPCLearnerNotReady},
	// etcd sends these two with code Unknown, too.
	{system.ErrNotStarted, unknown("etcdserver: re-configuration failed due to not enough started members")},
	{system.ErrUnhealthy, unknown("etcdserver: unhealthy cluster")},
	{system.ErrVersion, precondition("latchkey: " + system.ErrVersion.Error())},

	{lock.ErrNotLeader, unknown("election: not leader")},
	{lock.ErrNoLeader, unknown("election: no leader")},
	{lock.ErrClosed, rpctypes.ErrGRPCStopped},
	{lock.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{lock.ErrNotHolder, precondition("latchkey: the client does not have the lock by this token")},
	{lock.ErrNoSession, errNoSession},
	{lock.ErrOtherMode, precondition("latchkey: the client has a place for the lock in another mode")},
	{lock.ErrOtherClient, precondition("latchkey: the session has a place for another client")},
	// Lock and Election have texts of etcd's for it.
	{lock.ErrLost, precondition("latchkey: the client's place is gone, by force or with its lease")},

	{raft.ErrTimeout, rpctypes.ErrGRPCTimeout},
	{raft.ErrStopped, rpctypes.ErrGRPCStopped},
	{raft.ErrTooManyRequests, errTooManyRequests},
	{raft.ErrRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge},
	// The router tries again by itself. Where its time is over the client may:
	// nothing was applied.
	{mvcc.ErrReplaced, rpctypes.ErrGRPCLeaderChanged},
	{raft.ErrNotLeader, rpctypes.ErrGRPCLeaderChanged},
	{raft.ErrNotApplied, rpctypes.ErrGRPCLeaderChanged},
}

// toStatus turns an error of a layer below into what etcd would send. Context
// errors pass untouched, gRPC makes Canceled and DeadlineExceeded of them; so
// does what already is a status. Anything unknown is sent as Unknown.
func toStatus(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var wide *router.WideError
	if errors.As(err, &wide) {
		return unimplemented(severalShards + ": " + wide.Where())
	}
	for _, s := range sentinels {
		if errors.Is(err, s.is) {
			return s.wire
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return unknown(err.Error())
}

// lockStatus is toStatus of what the Locks service answers: a field that can't be is named in the
// details, and a lease that is not there is a session's.
func lockStatus(err error) error {
	var wrong *lock.FieldError
	switch {
	case errors.As(err, &wrong):
		return wrongField(wrong)
	case errors.Is(err, errLeaseNotFound):
		return errNoSession
	default:
		return toStatus(err)
	}
}

// wrongField is the answer to a request with a field that can't be.
func wrongField(wrong *lock.FieldError) error {
	s := status.New(codes.InvalidArgument, "latchkey: "+wrong.Field+" "+wrong.Reason)
	return withDetails(s, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: wrong.Field, Description: wrong.Reason},
	}})
}

// deadlocked is the answer to a call that was ended by a deadlock. Names are in the details alone:
// the text of a status has to be short.
func deadlocked(d *latchkeyv1.Deadlock) error {
	s := status.Newf(codes.Aborted, "latchkey: deadlock: %d clients wait for each other", len(d.GetCycle()))
	return withDetails(s, d)
}

// withDetails returns a status with details, if they can be told.
func withDetails(s *status.Status, details protoadapt.MessageV1) error {
	if detailed, err := s.WithDetails(details); err == nil {
		return detailed.Err()
	}
	return s.Err()
}

// fieldOf returns the field that an answer names, empty for none.
func fieldOf(err error) string {
	if violations := detailOf[*errdetails.BadRequest](err).GetFieldViolations(); len(violations) > 0 {
		return violations[0].GetField()
	}
	return ""
}

// detailOf returns the detail of a type in an answer, nil if there is none.
func detailOf[Detail any](err error) (detail Detail) {
	for _, d := range status.Convert(err).Details() {
		if is, ok := d.(Detail); ok {
			return is
		}
	}
	return detail
}

// precondition is the answer to a caller that does not have, or no longer, what its request says.
func precondition(reason string) error {
	return status.Error(codes.FailedPrecondition, reason)
}

// endOf says why the context of a stream has ended: the cause that this server
// gave, or the context's own error.
func endOf(ctx context.Context) error {
	return toStatus(context.Cause(ctx))
}

// unimplemented is the answer of a call that this server knows but cannot serve.
func unimplemented(reason string) error {
	return status.Error(codes.Unimplemented, reason)
}

// invalid is the answer to a request of the JSON API that can't be read.
func invalid(reason string) error {
	return status.Error(codes.InvalidArgument, reason)
}

// unknown is an error that etcd sends without a code of its own.
func unknown(text string) error {
	return status.Error(codes.Unknown, text)
}

// text returns the message of an error as a client's library shows it.
func text(err error) string { return rpctypes.ErrorDesc(err) }
