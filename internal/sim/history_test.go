package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// outcome is what a client knows of its call.
type outcome int

const (
	// unknown: the call may have been carried out, and may yet be.
	unknown outcome = iota
	answered
	// refused: it certainly did nothing.
	refused
)

// op is one call of a client.
type op struct {
	p *process
	// begin and end are places in the order of all beginnings and ends.
	begin, end     int64
	beganAt, ended time.Time
	// shown is what clients of the node had seen before.
	shown   int64
	req     proto.Message
	resp    proto.Message
	err     error
	outcome outcome
}

func (o *op) String() string {
	return fmt.Sprintf("[node %d, %d-%d] %T{%s} -> {%s} %v", o.p.node.id, o.begin, o.end, o.req, short(o.req), short(o.resp), o.err)
}

// header returns the revision of the answer's header.
func (o *op) header() int64 {
	if h, ok := o.resp.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		return h.GetHeader().GetRevision()
	}
	return 0
}

// writes reports whether the request is one for the log.
func (o *op) writes() bool {
	switch r := o.req.(type) {
	case *pb.PutRequest, *pb.DeleteRangeRequest:
		return true
	case *pb.TxnRequest:
		return slices.ContainsFunc(append(slices.Clone(r.Success), r.Failure...), func(o *pb.RequestOp) bool { return o.GetRequestRange() == nil })
	default:
		return false
	}
}

// changesLease reports whether the request grants or revokes a lease.
func (o *op) changesLease() bool {
	switch o.req.(type) {
	case *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest:
		return true
	default:
		return false
	}
}

// serializable reports whether the request asked for no more than what a node knows.
func (o *op) serializable() bool {
	r, ok := o.req.(*pb.RangeRequest)
	return ok && r.Serializable
}

// values returns the values that the request may write. Each is written by one
// request only.
func (o *op) values() []string {
	var all []string
	switch r := o.req.(type) {
	case *pb.PutRequest:
		all = append(all, string(r.Value))
	case *pb.TxnRequest:
		for _, op := range append(slices.Clone(r.Success), r.Failure...) {
			if p := op.GetRequestPut(); p != nil {
				all = append(all, string(p.Value))
			}
		}
	}
	return all
}

// history is all calls of all clients.
type history struct {
	clock atomic.Int64

	mu sync.Mutex
	// ops is protected by mu.
	ops []*op
}

// do makes one call on a node and records it.
func (h *history) do(ctx context.Context, p *process, req proto.Message) *op {
	o := &op{p: p, req: req, shown: p.shown.Load(), begin: h.clock.Add(1), beganAt: time.Now()}
	o.err = errCut
	if p.enter() {
		o.resp, o.err = send(ctx, p, proto.Clone(req))
		p.leave()
	}
	dead := p.dead.Load()
	o.end, o.ended = h.clock.Add(1), time.Now()
	switch {
	case dead:
		// Whatever it was, nobody heard it.
	case o.err == nil:
		o.outcome = answered
		for seen := p.shown.Load(); seen < o.header() && !p.shown.CompareAndSwap(seen, o.header()); seen = p.shown.Load() {
		}
	case rejected(o.err):
		o.outcome = refused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	return o
}

// rejected reports whether an error says that nothing was done.
func rejected(err error) bool {
	return mvcc.Rejected(err) || errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrExists) || errors.Is(err, raft.ErrTooManyRequests)
}

func send(ctx context.Context, p *process, req proto.Message) (proto.Message, error) {
	switch r := req.(type) {
	case *pb.PutRequest:
		return p.router.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		return p.router.DeleteRange(ctx, r)
	case *pb.TxnRequest:
		return p.router.Txn(ctx, r)
	case *pb.RangeRequest:
		return p.router.Range(ctx, r)
	case *pb.CompactionRequest:
		return p.router.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		return p.router.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		return p.router.LeaseRevoke(ctx, r)
	case *pb.LeaseKeepAliveRequest:
		return p.router.LeaseRenew(ctx, r.ID)
	case *pb.LeaseTimeToLiveRequest:
		return p.router.LeaseTimeToLive(ctx, r)
	default:
		panic(fmt.Sprintf("send %T", req))
	}
}

// tally is how many calls ended how.
func (h *history) tally() (counts [3]int) {
	for _, o := range h.ops {
		counts[o.outcome]++
	}
	return counts
}
