package peer

import "errors"

var (
	// ErrUnsent is returned for a call that the other node certainly does not carry out.
	ErrUnsent = errors.New("peer: the call was not sent")
	// ErrLost is returned for a call that the other node may carry out, or may have.
	ErrLost = errors.New("peer: the call was lost")
)
