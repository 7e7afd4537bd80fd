package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/system"
)

// TestToStatus checks code and text of every error of the layers below, also where
// it is wrapped.
func TestToStatus(t *testing.T) {
	type row struct {
		err  error
		code codes.Code
		text string
	}
	table := []row{
		{mvcc.ErrCompacted, codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted"},
		{mvcc.ErrFutureRev, codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision"},
		{mvcc.ErrKeyNotFound, codes.InvalidArgument, "etcdserver: key not found"},
		{mvcc.ErrEmptyOp, codes.InvalidArgument, "etcdserver: key not found"},
		{mvcc.ErrLeaseNotFound, codes.NotFound, "etcdserver: requested lease not found"},
		{mvcc.ErrReplaced, codes.Unavailable, "etcdserver: leader changed"},
		{mvcc.ErrCorrupt, codes.DataLoss, "etcdserver: corrupt cluster"},
		{lease.ErrNotFound, codes.NotFound, "etcdserver: requested lease not found"},
		{lease.ErrExists, codes.FailedPrecondition, "etcdserver: lease already exists"},
		{raft.ErrTimeout, codes.Unavailable, "etcdserver: request timed out"},
		{raft.ErrNotLeader, codes.Unavailable, "etcdserver: leader changed"},
		{raft.ErrNotApplied, codes.Unavailable, "etcdserver: leader changed"},
		{raft.ErrStopped, codes.Unavailable, "etcdserver: server stopped"},
		{raft.ErrTooManyRequests, codes.Unknown, "etcdserver: too many requests"},
		{raft.ErrRequestTooLarge, codes.InvalidArgument, "etcdserver: request is too large"},

		{auth.ErrRootUserNotExist, codes.FailedPrecondition, "etcdserver: root user does not exist"},
		{auth.ErrRootRoleNotExist, codes.FailedPrecondition, "etcdserver: root user does not have root role"},
		{auth.ErrUserAlreadyExist, codes.FailedPrecondition, "etcdserver: user name already exists"},
		{auth.ErrUserEmpty, codes.InvalidArgument, "etcdserver: user name is empty"},
		{auth.ErrUserNotFound, codes.FailedPrecondition, "etcdserver: user name not found"},
		{auth.ErrRoleAlreadyExist, codes.FailedPrecondition, "etcdserver: role name already exists"},
		{auth.ErrRoleNotFound, codes.FailedPrecondition, "etcdserver: role name not found"},
		{auth.ErrRoleEmpty, codes.InvalidArgument, "etcdserver: role name is empty"},
		{auth.ErrFailed, codes.InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"},
		{auth.ErrPermissionNotGiven, codes.InvalidArgument, "etcdserver: permission not given"},
		{auth.ErrPermissionDenied, codes.PermissionDenied, "etcdserver: permission denied"},
		{auth.ErrRoleNotGranted, codes.FailedPrecondition, "etcdserver: role is not granted to the user"},
		{auth.ErrPermissionNotGranted, codes.FailedPrecondition, "etcdserver: permission is not granted to the role"},
		{auth.ErrNotEnabled, codes.FailedPrecondition, "etcdserver: authentication is not enabled"},
		{auth.ErrInvalidToken, codes.Unauthenticated, "etcdserver: invalid auth token"},
		{auth.ErrInvalidManagement, codes.InvalidArgument, "etcdserver: invalid auth management"},
		{auth.ErrOldRevision, codes.InvalidArgument, "etcdserver: revision of auth store is old"},
		{router.ErrOutdated, codes.InvalidArgument, "etcdserver: revision of auth store is old"},
		{
			router.ErrSeveralShards, codes.Unimplemented,
			"latchkey: the keys of the request lie on several shards, and writes over several shards are switched off, or not known to all nodes yet",
		},
		{
			&router.WideError{}, codes.Unimplemented,
			"latchkey: the keys of the request lie on several shards, and writes over several shards are switched off, or not known to all nodes yet: " +
				`the keys from "" on are divided at ""`,
		},
		{system.ErrMemberExists, codes.FailedPrecondition, "etcdserver: member ID already exist"},
		{system.ErrPeerURLExists, codes.FailedPrecondition, "etcdserver: Peer URLs already exists"},
		{system.ErrTooManyLearners, codes.FailedPrecondition, "etcdserver: too many learner members in cluster"},
		{system.ErrNotMember, codes.NotFound, "etcdserver: member not found"},
		{system.ErrNotLearner, codes.FailedPrecondition, "etcdserver: can only promote a learner member"},
		{system.ErrLearnerBehind, codes.FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader"},
		{system.ErrNotStarted, codes.Unknown, "etcdserver: re-configuration failed due to not enough started members"},
		{system.ErrUnhealthy, codes.Unknown, "etcdserver: unhealthy cluster"},
		{system.ErrVersion, codes.FailedPrecondition, "latchkey: a node of the cluster does not know changes of members yet, or has never started: upgrade and start all nodes first"},
		{lock.ErrNotLeader, codes.Unknown, "election: not leader"},
		{lock.ErrNoLeader, codes.Unknown, "election: no leader"},
		{lock.ErrClosed, codes.Unavailable, "etcdserver: server stopped"},
		{lock.ErrCompacted, codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted"},
		{lock.ErrNotHolder, codes.FailedPrecondition, "latchkey: the client does not have the lock by this token"},
		{lock.ErrNoSession, codes.FailedPrecondition, "latchkey: there is no such session"},
		{lock.ErrOtherMode, codes.FailedPrecondition, "latchkey: the client has a place for the lock in another mode"},
		{lock.ErrOtherClient, codes.FailedPrecondition, "latchkey: the session has a place for another client"},
		{lock.ErrLost, codes.FailedPrecondition, "latchkey: the client's place is gone, by force or with its lease"},
		{errors.New("disk on fire"), codes.Unknown, "disk on fire"},
	}
	for _, s := range sentinels {
		if !slices.ContainsFunc(table, func(tc row) bool { return errors.Is(tc.err, s.is) }) {
			t.Errorf("%v is not looked at", s.is)
		}
	}
	for _, tc := range table {
		t.Run(tc.err.Error(), func(t *testing.T) {
			wantStatus(t, toStatus(tc.err), tc.code, tc.text)
			if tc.code != codes.Unknown || errors.Is(tc.err, raft.ErrTooManyRequests) {
				wantStatus(t, toStatus(fmt.Errorf("put key: %w", tc.err)), tc.code, tc.text)
			}
		})
	}
}

// TestOwnStatuses checks code and text of what the services answer by themselves.
func TestOwnStatuses(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{errEmptyKey, codes.InvalidArgument, "etcdserver: key is not provided"},
		{errKeyNotFound, codes.InvalidArgument, "etcdserver: key not found"},
		{errValueProvided, codes.InvalidArgument, "etcdserver: value is provided"},
		{errLeaseProvided, codes.InvalidArgument, "etcdserver: lease is provided"},
		{errTooManyOps, codes.InvalidArgument, "etcdserver: too many operations in txn request"},
		{errDuplicateKey, codes.InvalidArgument, "etcdserver: duplicate key given in txn request"},
		{errInvalidSortOption, codes.InvalidArgument, "etcdserver: invalid sort option"},
		{errInvalidClientAPIVersion, codes.InvalidArgument, "etcdserver: invalid client api version"},
		{errRequestTooLarge, codes.InvalidArgument, "etcdserver: request is too large"},
		{errLeaseTTLTooLarge, codes.OutOfRange, "etcdserver: too large lease TTL"},
		{errNoSpace, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"},
		{errCorrupt, codes.DataLoss, "etcdserver: corrupt cluster"},
		{errNoLeader, codes.Unavailable, "etcdserver: no leader"},
		{errNotLeader, codes.FailedPrecondition, "etcdserver: not leader"},
		{errStopped, codes.Unavailable, "etcdserver: server stopped"},
		{errWatchCanceled, codes.Canceled, "etcdserver: watch canceled"},
		{errBadLeaderTransferee, codes.FailedPrecondition, "etcdserver: bad leader transferee"},
		{errMemberBadURLs, codes.InvalidArgument, "etcdserver: given member URLs are invalid"},
		{errForLearner, codes.FailedPrecondition, "etcdserver: rpc not supported for learner"},
		{errTooManyRequests, codes.Unknown, "etcdserver: too many requests"},
		{errDowngradeVersionFormat, codes.InvalidArgument, "etcdserver: wrong downgrade target version format"},
		{errDowngradeVersionTarget, codes.InvalidArgument, "etcdserver: invalid downgrade target version"},
		{errLockLost, codes.Unknown, "mutex: session is expired"},
		{errCampaignLost, codes.Unknown, "election: session is expired"},
		{errStreamSort, codes.Unimplemented, "RangeStream does not support custom sort orders"},
		{errStreamFilter, codes.Unimplemented, "RangeStream does not support revision filters"},
	} {
		wantStatus(t, tc.err, tc.code, tc.text)
		if got := toStatus(tc.err); !errors.Is(got, tc.err) {
			t.Errorf("toStatus(%v) = %v", tc.err, got)
		}
	}
}

func TestToStatusContext(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, fmt.Errorf("wait: %w", context.Canceled), nil} {
		if got := toStatus(err); !errors.Is(got, err) {
			t.Errorf("toStatus(%v) = %v, want it untouched", err, got)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errNoLeader)
	wantStatus(t, endOf(ctx), codes.Unavailable, "etcdserver: no leader")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if got := status.FromContextError(endOf(ctx)).Code(); got != codes.Canceled {
		t.Errorf("end of a cancelled context has code %v", got)
	}
}
