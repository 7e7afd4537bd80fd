package peer

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsent is returned for a call that the other node certainly does not carry out.
	ErrUnsent = errors.New("peer: the call was not sent")
	// ErrLost is returned for a call that the other node may carry out, or may have.
	ErrLost = errors.New("peer: the call was lost")
	// ErrTooLarge is returned for a request that no message can hold.
	ErrTooLarge = errors.New("peer: the request is too large")
	// ErrBarred is what Config.Admit wraps for a node that will never be admitted as it is.
	ErrBarred = errors.New("peer: the node is barred")
	// ErrRemoved is what Config.Admit wraps for a node that was removed from the cluster. The text is etcd's.
	ErrRemoved = errors.New("the member has been permanently removed from the cluster")

	errClosed      = errors.New("closed")
	errSilent      = errors.New("the other node is silent")
	errSlow        = errors.New("the handshake took too long")
	errNoListener  = errors.New("nobody listens there")
	errUnknown     = errors.New("no address of the node is known")
	errStream      = errors.New("malformed message")
	errNoTLS       = errors.New("this node was started without certificates for other nodes")
	errProtocol    = errors.New("the other side speaks another protocol")
	errNotAdmitted = errors.New("the other side was not let in")
	errChunk       = errors.New("the other node refused the snapshot")
)

// RefusalKind says why a node was not let in.
type RefusalKind string

// The kinds of refusals. They are spoken between versions.
const (
	// RefusedCluster is for a node of another cluster.
	RefusedCluster RefusalKind = "cluster"
	// RefusedBarred is for a node that will never be admitted as it is.
	RefusedBarred RefusalKind = "barred"
	// RefusedRemoved is for a node that was removed from the cluster.
	RefusedRemoved RefusalKind = "removed"
	// RefusedOther is for anything else, which may pass.
	RefusedOther RefusalKind = "other"
)

// RefusedError is what another node answers that does not let this one in.
type RefusedError struct {
	// Node is the node that was to be reached.
	Node uint64
	// Kind tells what to do from what to wait for.
	Kind RefusalKind
	// Text is the other node's, for people.
	Text string
	// Proved says that who refused has proved to know the cluster's secret. Anybody may be the
	// one who has not.
	Proved bool
}

// Error says who refused and why.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("node %x refused this node: %s", e.Node, e.Text)
}
