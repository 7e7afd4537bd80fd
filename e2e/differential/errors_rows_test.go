package differential

import "google.golang.org/grpc/codes"

// errorRow is an error of etcd's: clients know it by its text.
type errorRow struct {
	name string
	code codes.Code
	text string
	// unseen says why a server of one node can't be made to answer so from outside;
	// empty for a row that some refusal must meet.
	unseen string
}

// Reasons for which a row is not met.
const (
	needsMembers   = "it takes a cluster of several members"
	needsLearner   = "it takes a learner"
	needsDowngrade = "it takes a downgrade under way, and Latchkey has no older version to go to"
	needsLoss      = "it takes a lost leader, or a majority that is gone"
	needsRace      = "it takes a race that can't be won at will"
	neverSent      = "no call of a client leads to it"
	clientsOwn     = "the client's library answers by itself when its time is over"
)

// errorRows are all errors of etcd, with the code and the text on the wire. Those of
// Lock and Election and the reasons of refused watches, which etcd sends inside
// answers, have the code Unknown here.
var errorRows = []errorRow{
	// Requests on keys.
	{"ErrEmptyKey", codes.InvalidArgument, noKey, ""},
	{"ErrKeyNotFound", codes.InvalidArgument, keyUnknown, ""},
	{"ErrValueProvided", codes.InvalidArgument, valueGiven, ""},
	{"ErrLeaseProvided", codes.InvalidArgument, leaseGiven, ""},
	{"ErrTooManyOps", codes.InvalidArgument, tooManyOps, ""},
	{"ErrDuplicateKey", codes.InvalidArgument, doubleKey, ""},
	{"ErrInvalidSortOption", codes.InvalidArgument, badSort, ""},
	{"ErrInvalidClientAPIVersion", codes.InvalidArgument, "etcdserver: invalid client api version", ""},
	{"ErrCompacted", codes.OutOfRange, compacted, ""},
	{"ErrFutureRev", codes.OutOfRange, future, ""},
	{"ErrNoSpace", codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded", ""},
	{"ErrRequestTooLarge", codes.InvalidArgument, tooLarge, ""},
	{"message too large", codes.ResourceExhausted, "grpc: received message larger than max (2097160 vs. 2097152)", ""},
	{"ErrTooManyRequests", codes.Unknown, "etcdserver: too many requests", needsRace},
	{"RangeStream: sorted", codes.Unimplemented, noSorted, ""},
	{"RangeStream: filtered", codes.Unimplemented, noFiltered, ""},

	// Leases.
	{"ErrLeaseNotFound", codes.NotFound, noLease, ""},
	{"ErrLeaseExist", codes.FailedPrecondition, leaseExists, ""},
	{"ErrLeaseTTLTooLarge", codes.OutOfRange, ttlTooLong, ""},

	// Watches.
	{"ErrWatchCanceled", codes.Canceled, "etcdserver: watch canceled", clientsOwn},
	{"watch: negative start", codes.Unknown, "watch refused: " + compacted, ""},
	{"watch: empty range", codes.Unknown, "watch refused: mvcc: watcher range is empty", ""},
	{"watch: id in use", codes.Unknown, "watch refused: mvcc: duplicate watch ID provided on the WatchStream", ""},
	{"watch: no right", codes.Unknown, "watch refused: rpc error: code = PermissionDenied desc = etcdserver: permission denied", ""},
	{"watch: no user", codes.Unknown, "watch refused: rpc error: code = InvalidArgument desc = etcdserver: user name is empty", ""},
	{"watch: compacted start", codes.Unknown, "watch ended: compacted at 3", ""},

	// Members.
	{"ErrMemberExist", codes.FailedPrecondition, "etcdserver: member ID already exist", neverSent},
	{"ErrPeerURLExist", codes.FailedPrecondition, "etcdserver: Peer URLs already exists", ""},
	{"ErrMemberNotEnoughStarted", codes.Unknown, "etcdserver: re-configuration failed due to not enough started members", ""},
	{"ErrMemberBadURLs", codes.InvalidArgument, "etcdserver: given member URLs are invalid", ""},
	{"ErrMemberNotFound", codes.NotFound, "etcdserver: member not found", ""},
	{"ErrMemberNotLearner", codes.FailedPrecondition, "etcdserver: can only promote a learner member", ""},
	{"ErrLearnerNotReady", codes.FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader", needsLearner},
	{"ErrTooManyLearners", codes.FailedPrecondition, "etcdserver: too many learner members in cluster", needsLearner},
	{"ErrNotSupportedForLearner", codes.FailedPrecondition, "etcdserver: rpc not supported for learner", needsLearner},
	{"ErrClusterIDMismatch", codes.FailedPrecondition, "etcdserver: cluster ID mismatch", needsMembers},

	// Users.
	{"ErrRootUserNotExist", codes.FailedPrecondition, "etcdserver: root user does not exist", ""},
	{"ErrRootRoleNotExist", codes.FailedPrecondition, "etcdserver: root user does not have root role", ""},
	{"ErrUserAlreadyExist", codes.FailedPrecondition, "etcdserver: user name already exists", ""},
	{"ErrUserNotFound", codes.FailedPrecondition, "etcdserver: user name not found", ""},
	{"ErrRoleAlreadyExist", codes.FailedPrecondition, "etcdserver: role name already exists", ""},
	{"ErrRoleNotFound", codes.FailedPrecondition, "etcdserver: role name not found", ""},
	{"ErrUserEmpty", codes.InvalidArgument, "etcdserver: user name is empty", ""},
	{"ErrRoleEmpty", codes.InvalidArgument, "etcdserver: role name is empty", ""},
	{"ErrAuthFailed", codes.InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", ""},
	{"ErrPermissionDenied", codes.PermissionDenied, "etcdserver: permission denied", ""},
	{"ErrPermissionNotGiven", codes.InvalidArgument, "etcdserver: permission not given", ""},
	{"ErrRoleNotGranted", codes.FailedPrecondition, "etcdserver: role is not granted to the user", ""},
	{"ErrPermissionNotGranted", codes.FailedPrecondition, "etcdserver: permission is not granted to the role", ""},
	{"ErrAuthNotEnabled", codes.FailedPrecondition, "etcdserver: authentication is not enabled", ""},
	{"ErrInvalidAuthToken", codes.Unauthenticated, "etcdserver: invalid auth token", ""},
	{"ErrInvalidAuthMgmt", codes.InvalidArgument, "etcdserver: invalid auth management", ""},
	{"ErrAuthOldRevision", codes.InvalidArgument, "etcdserver: revision of auth store is old", ""},

	// The cluster's state.
	{"ErrNoLeader", codes.Unavailable, "etcdserver: no leader", needsLoss},
	{"ErrNotLeader", codes.FailedPrecondition, "etcdserver: not leader", needsMembers},
	{"ErrLeaderChanged", codes.Unavailable, "etcdserver: leader changed", needsLoss},
	{"ErrNotCapable", codes.FailedPrecondition, "etcdserver: not capable", needsMembers},
	{"ErrStopped", codes.Unavailable, "etcdserver: server stopped", needsRace},
	{"ErrUnhealthy", codes.Unavailable, "etcdserver: unhealthy cluster", needsMembers},
	{"ErrTimeout", codes.Unavailable, "etcdserver: request timed out", needsLoss},
	{"ErrTimeoutDueToLeaderFail", codes.Unavailable, "etcdserver: request timed out, possibly due to previous leader failure", needsLoss},
	{"ErrTimeoutDueToConnectionLost", codes.Unavailable, "etcdserver: request timed out, possibly due to connection lost", needsLoss},
	{"ErrTimeoutWaitAppliedIndex", codes.Unavailable, "etcdserver: request timed out, waiting for the applied index took too long", needsRace},
	{"ErrCorrupt", codes.DataLoss, "etcdserver: corrupt cluster", ""},
	{"ErrBadLeaderTransferee", codes.FailedPrecondition, "etcdserver: bad leader transferee", ""},

	// Downgrades.
	{"ErrWrongDowngradeVersionFormat", codes.InvalidArgument, "etcdserver: wrong downgrade target version format", ""},
	{"ErrInvalidDowngradeTargetVersion", codes.InvalidArgument, "etcdserver: invalid downgrade target version", ""},
	{"ErrClusterVersionUnavailable", codes.FailedPrecondition, "etcdserver: cluster version not found during downgrade", needsDowngrade},
	{"ErrDowngradeInProcess", codes.FailedPrecondition, "etcdserver: cluster has a downgrade job in progress", needsDowngrade},
	{"ErrNoInflightDowngrade", codes.FailedPrecondition, "etcdserver: no inflight downgrade job", neverSent},
	{"unknown action", codes.Unknown, "etcdserver: unknown method", ""},

	// What ends a call itself.
	{"Canceled", codes.Canceled, "context canceled", ""},
	{"DeadlineExceeded", codes.DeadlineExceeded, "context deadline exceeded", ""},
	{"unknown method", codes.Unimplemented, "unknown method Nothing for service etcdserverpb.KV", ""},
	{"unknown service", codes.Unimplemented, "unknown service etcdserverpb.Nothing", ""},
	{"unknown health service", codes.NotFound, "unknown service", ""},

	// Lock and Election send all errors as Unknown.
	{"Lock: no lease", codes.Unknown, noLease, ""},
	{"Lock: no key", codes.Unknown, noKey, ""},
	{"Election: no leader", codes.Unknown, "election: no leader", ""},
	{"Election: not leader", codes.Unknown, "election: not leader", ""},
	{"Election: no leader given", codes.Unknown, `"leader" field must be provided`, ""},

	// The JSON API: the status of HTTP and the body.
	{"gateway: bad request", codes.Unknown, `400 {"code":3,"message":"etcdserver: key is not provided"}`, ""},
	{"gateway: not found", codes.Unknown, `404 {"code":5,"message":"etcdserver: requested lease not found"}`, ""},
	{"gateway: precondition", codes.Unknown, `400 {"code":9,"message":"etcdserver: lease already exists"}`, ""},
	{"gateway: out of range", codes.Unknown, `400 {"code":11,"message":"etcdserver: mvcc: required revision is a future revision"}`, ""},
	{"gateway: no space", codes.Unknown, `429 {"code":8,"message":"etcdserver: mvcc: database space exceeded"}`, ""},
	{"gateway: no token", codes.Unknown, `400 {"code":3,"message":"etcdserver: user name is empty"}`, ""},
	{"gateway: bad token", codes.Unknown, `401 {"code":16,"message":"etcdserver: invalid auth token"}`, ""},
	{"gateway: no right", codes.Unknown, `403 {"code":7,"message":"etcdserver: permission denied"}`, ""},
	{"gateway: Lock", codes.Unknown, `500 {"code":2,"message":"etcdserver: requested lease not found"}`, ""},
	{"gateway: corrupt", codes.Unknown, `500 {"code":15,"message":"etcdserver: corrupt cluster"}`, ""},
	{"gateway: another method", codes.Unknown, `501 {"code":12,"message":"Method Not Allowed"}`, ""},
	{"gateway: no such path", codes.Unknown, `404 {"code":5,"message":"Not Found"}`, ""},
}
