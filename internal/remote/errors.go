package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// Codes of answers. The numbers are spoken between versions, so that they never change.
const (
	codeOK    byte = 0
	codeOther byte = 255
)

// known are the errors that callers tell apart. The text of one that says more than its
// name travels behind the code.
var known = []struct {
	code byte
	err  error
}{
	{1, raft.ErrNotLeader},
	{2, raft.ErrNotApplied},
	{3, raft.ErrTimeout},
	{4, raft.ErrStopped},
	{5, raft.ErrTooManyRequests},
	{6, raft.ErrRequestTooLarge},
	{7, shard.ErrOutdated},
	{8, shard.ErrForbidden},
	{9, lease.ErrNotFound},
	{10, lease.ErrExists},
	{11, lease.ErrEnding},
	{12, mvcc.ErrLeaseNotFound},
	{13, context.Canceled},
	{14, context.DeadlineExceeded},
	{15, shard.ErrYounger},
	{16, shard.ErrAborted},
	{32, system.ErrTooOld},
	{64, auth.ErrRootUserNotExist},
	{65, auth.ErrRootRoleNotExist},
	{66, auth.ErrUserAlreadyExist},
	{67, auth.ErrUserEmpty},
	{68, auth.ErrUserNotFound},
	{69, auth.ErrRoleAlreadyExist},
	{70, auth.ErrRoleNotFound},
	{71, auth.ErrRoleEmpty},
	{72, auth.ErrPermissionNotGiven},
	{73, auth.ErrPermissionDenied},
	{74, auth.ErrRoleNotGranted},
	{75, auth.ErrPermissionNotGranted},
	{76, auth.ErrFailed},
	{77, auth.ErrNoPasswordUser},
	{78, auth.ErrNotEnabled},
	{79, auth.ErrOldRevision},
	{80, auth.ErrInvalidToken},
	{81, auth.ErrInvalidManagement},
	{82, auth.ErrVerifyOnly},
}

// failedAnswer returns the answer of a call that failed.
func failedAnswer(err error) []byte {
	code := codeOther
	for _, k := range known {
		if errors.Is(err, k.err) {
			code = k.code
			break
		}
	}
	return append([]byte{code}, err.Error()...)
}

var errMalformed = errors.New("malformed message")

// failure is an error of another node that is not one of those that callers tell apart.
type failure struct{ text string }

// Error returns what the other node said.
func (f failure) Error() string { return f.text }

// open returns the result in an answer, or the error.
func open(answer []byte) ([]byte, error) {
	if len(answer) == 0 {
		return nil, errMalformed
	}
	code, rest := answer[0], answer[1:]
	if code == codeOK {
		return rest, nil
	}
	for _, k := range known {
		switch {
		case k.code != code:
		case string(rest) == k.err.Error():
			return nil, k.err
		default:
			return nil, fmt.Errorf("%w (%s)", k.err, rest)
		}
	}
	return nil, failure{string(rest)}
}
