package mvcc

import "errors"

// Rejections. A rejected command has changed nothing, and every replica rejects
// it alike. Reads answer ErrCompacted and ErrFutureRev too.
var (
	// ErrCompacted is returned when a read or a compaction asks for a revision
	// whose history is gone.
	ErrCompacted = errors.New("mvcc: required revision has been compacted")
	// ErrFutureRev is returned when a read or a compaction asks for a revision
	// that the store has not reached.
	ErrFutureRev = errors.New("mvcc: required revision is a future revision")
	// ErrKeyNotFound is returned when a put keeps the value or the lease of a
	// key that does not exist.
	ErrKeyNotFound = errors.New("mvcc: key not found")
	// ErrLeaseNotFound is returned when a put names a lease that does not exist.
	ErrLeaseNotFound = errors.New("mvcc: lease not found")
	// ErrEmptyOp is returned when an operation on the taken path of a
	// transaction holds no request.
	ErrEmptyOp = errors.New("mvcc: empty operation in transaction")
	// ErrHeld is returned for a compaction up to a revision, and a hash at one, below
	// which a transaction that is not settled may still change something.
	ErrHeld = errors.New("mvcc: a transaction that is not settled holds keys")
)

// ErrReplaced is returned by reads whose View was opened before the store's
// content was replaced. A new View answers.
var ErrReplaced = errors.New("mvcc: store was replaced under the view")

// ErrCorrupt is returned when stored data is not what this package writes.
var ErrCorrupt = errors.New("mvcc: corrupt data")

// Rejected reports whether err is one of the deterministic rejections. Any
// other error of a Writer is a fault of storage, after which the Writer must be
// dropped and the replica stopped.
func Rejected(err error) bool {
	return errors.Is(err, ErrCompacted) || errors.Is(err, ErrFutureRev) || errors.Is(err, ErrKeyNotFound) ||
		errors.Is(err, ErrLeaseNotFound) || errors.Is(err, ErrEmptyOp) || errors.Is(err, ErrHeld)
}
