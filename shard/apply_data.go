package shard

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// dataRun applies a run of commands to a data shard.
type dataRun struct {
	d     *Data
	batch *pebble.Batch
	w     *mvcc.Writer
	// fence and shape are those after the commands so far; all says that the shard
	// owns everything.
	fence    Fence
	shape    Shape
	all      bool
	reshaped bool

	// verdicts is what the running command brings of leases that are kept elsewhere.
	verdicts []verdict
	// undecided says why the running command is turned away if a lease that it uses is
	// missing; nil where the shard itself knows that it is.
	undecided error
	// failed is what a shadow could not be written for.
	failed error

	// What the leader's clock and the sweeper hear of once the run is committed.
	granted   []lease.Record
	ended     []int64
	ending    []int64
	forgotten bool
	expired   int
	// held and decided are the transactions that the run has had hold keys and committed, and over those
	// that it has ended.
	held      []commit.ID
	over      []commit.ID
	decided   []commit.ID
	compacted bool
}

// Command applies one command. The number of one that is taken counts as reached
// whatever comes of it.
func (r *dataRun) Command(c raft.Command, want bool) (result any, rejected, failed error) {
	reached, rejected, failed := r.place(c)
	if rejected != nil || failed != nil {
		return nil, rejected, failed
	}
	defer r.w.Reach(reached)
	r.verdicts, r.undecided = nil, nil
	if r.fence.Closed && fenced(Kind(c.Kind)) {
		return nil, ErrOutdated, nil
	}
	return r.command(c, want)
}

// command applies one command that the fence lets pass.
func (r *dataRun) command(c raft.Command, want bool) (result any, rejected, failed error) {
	switch Kind(c.Kind) { //nolint:exhaustive // run has the others
	case kindGuarded:
		return r.guarded(c, want)
	case kindAttached:
		return r.attached(c, want)
	case kindPrepare, kindPrepareUnnumbered:
		return r.checked(c, r.prepare)
	case kindDecide:
		return r.checked(c, r.decide)
	}
	result, err := r.run(c, want)
	return r.outcome(result, err)
}

// outcome tells a rejection from a failure.
func (r *dataRun) outcome(result any, err error) (any, error, error) {
	switch {
	case r.failed != nil:
		return nil, nil, r.failed
	case err == nil:
		return result, nil, nil
	case r.undecided != nil && errors.Is(err, mvcc.ErrLeaseNotFound):
		return nil, r.undecided, nil
	case mvcc.Rejected(err), errors.Is(err, lease.ErrExists), errors.Is(err, lease.ErrNotFound),
		errors.Is(err, lease.ErrEnding), errors.Is(err, raft.ErrNotApplied),
		errors.Is(err, ErrAborted), errors.Is(err, ErrYounger), errors.Is(err, ErrOutdated):
		return nil, err, nil
	default:
		return nil, nil, err
	}
}

// run runs one command without anything around it.
func (r *dataRun) run(c raft.Command, want bool) (result any, err error) {
	switch Kind(c.Kind) {
	case KindPut:
		result, err = applyOwned(r, c, want, new(pb.PutRequest), r.w.Put)
	case KindDeleteRange:
		result, err = applyOwned(r, c, want, new(pb.DeleteRangeRequest), r.w.DeleteRange)
	case KindTxn:
		result, err = applyOwned(r, c, want, new(pb.TxnRequest), r.w.Txn)
	case KindCompact:
		result, err = apply(c, want, new(pb.CompactionRequest), r.compact)
	case KindLeaseGrant, KindLeaseRevoke, KindLeaseRevokeHere, kindLeaseExpire, kindLeaseEnd, kindLeaseAging, kindLeaseFresh,
		kindLeaseRegister, kindLeaseDrop, kindLeaseForget, kindDropTombstones:
		return r.runLease(c, want)
	case kindFence:
		err = r.raise(c.Payload)
	case kindFirstShape:
		err = r.takeFirstShape(c.Payload)
	case kindOrder:
		if len(c.Payload) > 0 {
			return nil, fmt.Errorf("order with a payload: %w", keys.ErrNewer)
		}
		result, err = r.order()
	case kindSweep:
		err = r.sweep(c.Payload)
	case kindFinish:
		err = r.finish(c.Payload)
	case kindAbort:
		result, err = r.abort(c.Payload)
	case kindForgetCommitted:
		err = r.forgetCommitted(c.Payload)
	case kindGuarded, kindAttached, kindPrepare, kindPrepareUnnumbered, kindDecide:
		fallthrough
	default:
		err = fmt.Errorf("command of kind %d: %w", c.Kind, keys.ErrNewer)
	}
	return result, err
}

// runLease is run for a command of leases.
func (r *dataRun) runLease(c raft.Command, want bool) (result any, err error) {
	switch Kind(c.Kind) { //nolint:exhaustive // run has the others
	case KindLeaseGrant:
		result, err = apply(c, want, new(pb.LeaseGrantRequest), r.grant)
	case KindLeaseRevoke:
		result, err = apply(c, want, new(pb.LeaseRevokeRequest), r.revoke)
	case kindLeaseExpire:
		result, err = r.expire(c, false)
	case kindLeaseEnd:
		result, err = r.expire(c, true)
	case KindLeaseRevokeHere:
		result, err = apply(c, want, new(pb.LeaseRevokeRequest), r.revokeHere)
	case kindLeaseAging:
		err = r.aging(c.Payload)
	case kindLeaseFresh:
		err = r.fresh(c.Payload)
	case kindLeaseRegister:
		result, err = r.register(c.Payload)
	case kindLeaseDrop:
		result, err = r.drop(c)
	case kindLeaseForget:
		err = r.forget(c.Payload)
	case kindDropTombstones:
		err = r.dropTombstones(c.Payload)
	}
	return result, err
}

// apply decodes the command's request and runs it.
func apply[Request proto.Message, Response any](
	c raft.Command, want bool, request Request, run func(Request, mvcc.Opts) (Response, error),
) (any, error) {
	if err := raft.DecodeRequest(c.Payload, request); err != nil {
		return nil, err
	}
	return run(request, mvcc.Opts{Number: c.Number, Compacted: c.Compacted, Want: want})
}

// applyOwned is apply of a request for keys, which the shard must own.
func applyOwned[Request proto.Message, Response any](
	r *dataRun, c raft.Command, want bool, request Request, run func(Request, mvcc.Opts) (Response, error),
) (any, error) {
	return apply(c, want, request, func(request Request, o mvcc.Opts) (resp Response, err error) {
		if !r.all {
			reads, writes, _ := touches(request)
			if !r.owns(reads) || !r.owns(writes) {
				return resp, errNotOwned
			}
			if r.w.Meets(reads, writes) {
				return resp, errHeld
			}
		}
		return run(request, o)
	})
}

func (r *dataRun) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: r.w.Rev()} }

func (r *dataRun) compact(req *pb.CompactionRequest, _ mvcc.Opts) (*pb.CompactionResponse, error) {
	if err := r.w.Compact(req.Revision); err != nil {
		return nil, err
	}
	r.compacted = true
	return &pb.CompactionResponse{Header: r.header()}, nil
}

// Finish writes the last records into the batch.
func (r *dataRun) Finish() error {
	return errors.Join(r.d.transactions.Finish(r.batch), r.w.Finish())
}

// Publish shows the changes, then tells the leader's clock, so that a lease is
// on the clock before its grant is answered.
//
// Fence and shape are shown before the keys that came after them.
func (r *dataRun) Publish() {
	if r.fence != r.d.Fence() {
		fence := r.fence
		r.d.fence.Store(&fence)
	}
	if r.reshaped {
		shape := r.shape
		r.d.shape.Store(&shape)
	}
	r.w.Publish()
	r.d.keeper.applied(r)
	r.d.holding.published(r.held, r.over)
	r.d.settler.decided(r.decided)
	r.observe()
	if r.compacted {
		r.d.sweeper.start()
	}
}

// observe tells of the leases that the run granted and ended.
func (r *dataRun) observe() {
	o := r.d.observer
	for _, rec := range r.granted {
		o.LeaseGranted(rec.TTL)
	}
	if len(r.ended)+r.expired > 0 {
		o.LeasesEnded(len(r.ended), r.expired)
	}
}
