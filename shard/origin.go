package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// Sent is one of etcd's requests on its way from its origin to the leader.
type Sent struct {
	// ID names the command; it is in at most one batch.
	ID raft.CommandID
	// Term is the only one in which the leader may propose it.
	Term uint64
	// Guard is what the sender has checked, nil if nothing.
	Guard *Guard
	// Kind and Request are the request's. Those of a step of a transaction are its kind,
	// and a byte that says whether its Prepare is patient before the step's message.
	Kind    Kind
	Request []byte
}

// Append writes the command behind dst.
func (s *Sent) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.ID.Origin)
	dst = binary.AppendUvarint(dst, s.ID.Sequence)
	dst = binary.AppendUvarint(dst, s.Term)
	kind, payload := s.Kind, s.Request
	if s.Guard != nil {
		kind, payload = guarded(s.Guard, kind, payload)
	}
	return append(append(dst, byte(kind)), payload...)
}

var errBadSent = errors.New("malformed command of another node")

// CutSent reads what Append wrote; the request aliases src.
func CutSent(src []byte) (s Sent, err error) {
	if len(src) < 8 {
		return s, errBadSent
	}
	s.ID.Origin, src = binary.BigEndian.Uint64(src), src[8:]
	for _, p := range []*uint64{&s.ID.Sequence, &s.Term} {
		v, n := binary.Uvarint(src)
		if n <= 0 {
			return s, errBadSent
		}
		*p, src = v, src[n:]
	}
	if len(src) > 0 && Kind(src[0]) == kindGuarded {
		g, rest, err := cutGuard(src[1:])
		if err != nil {
			return s, err
		}
		s.Guard, src = &g, rest
	}
	if len(src) == 0 {
		return s, errBadSent
	}
	s.Kind, s.Request = Kind(src[0]), src[1:]
	return s, nil
}

// request decodes what the command carries.
func (s *Sent) request() (proto.Message, error) {
	var m proto.Message
	switch s.Kind { //nolint:exhaustive // the others are not sent
	case KindPut:
		m = new(pb.PutRequest)
	case KindDeleteRange:
		m = new(pb.DeleteRangeRequest)
	case KindTxn:
		m = new(pb.TxnRequest)
	case KindCompact:
		m = new(pb.CompactionRequest)
	case KindLeaseGrant:
		m = new(pb.LeaseGrantRequest)
	case KindLeaseRevoke, KindLeaseRevokeHere:
		m = new(pb.LeaseRevokeRequest)
	default:
		return nil, fmt.Errorf("%w: kind %d", errBadSent, s.Kind)
	}
	if err := raft.DecodeRequest(s.Request, m); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadSent, err)
	}
	return m, nil
}

// WriteForwarded puts a command of another node through the log. It returns nil when the command
// has applied here, whatever came of it: its origin hears that from its own replica.
// ErrTimeout, ErrStopped and a context's error say that it may apply; any other
// that it never will.
func (d *Data) WriteForwarded(ctx context.Context, s Sent) error {
	put := d.requestOf
	if s.Kind == kindPrepare || s.Kind == kindDecide {
		put = d.stepOf
	}
	o, err := put(ctx, &s)
	if err == nil && !o.Applied {
		err = o.Err
	}
	return err
}

// requestOf puts a request of another node through the log.
func (d *Data) requestOf(ctx context.Context, s *Sent) (raft.Outcome, error) {
	request, err := s.request()
	if err != nil {
		return raft.Outcome{}, err
	}
	return d.submit(ctx, raft.Proposal{Kind: raft.Kind(s.Kind), Payload: s.Request, Term: s.Term, ID: s.ID}, request, s.Guard)
}

// stepOf has the shard take a step of a transaction that another node coordinates.
func (d *Data) stepOf(ctx context.Context, s *Sent) (raft.Outcome, error) {
	step, err := cutStep(s.Kind, s.Request)
	if err != nil {
		return raft.Outcome{}, err
	}
	return d.take(ctx, raft.Proposal{Term: s.Term, ID: s.ID}, s.Guard, &step)
}

// ForwardStep is Take for a shard that another node leads, to which send hands the step.
func (d *Data) ForwardStep(ctx context.Context, send func(context.Context, Sent) error, g *Guard, s *Step) (any, error) {
	request := appendStep(nil, s)
	return d.replica.Forward(ctx, func(ctx context.Context, id raft.CommandID, term uint64) error {
		return send(ctx, Sent{ID: id, Term: term, Guard: g, Kind: s.kind(), Request: request})
	})
}

// appendStep writes a step as it is sent.
func appendStep(dst []byte, s *Step) []byte {
	patient := byte(0)
	if s.Patient {
		patient = 1
	}
	return append(append(dst, patient), s.payload()...)
}

// cutStep reads what appendStep wrote.
func cutStep(kind Kind, src []byte) (s Step, err error) {
	if len(src) == 0 || src[0] > 1 {
		return s, errBadSent
	}
	s.Patient = src[0] == 1
	if kind == kindPrepare {
		var p commit.Prepare
		p, err = commit.DecodePrepare(src[1:])
		s.Prepare = &p
	} else {
		var d commit.Decision
		d, err = commit.DecodeDecision(src[1:])
		s.Decision = &d
	}
	if err != nil {
		return s, fmt.Errorf("%w: %w", errBadSent, err)
	}
	return s, nil
}

// Forward is Write for a shard that another node leads, to which send hands the command. send
// returns what WriteForwarded returns there, or says that the command was lost on the way.
func (d *Data) Forward(
	ctx context.Context, send func(context.Context, Sent) error, g *Guard, kind Kind, request proto.Message,
) (any, error) {
	payload, err := raft.EncodeRequest(request)
	if err != nil {
		return nil, err
	}
	var turned turnedAway
	for {
		result, err := d.replica.Forward(ctx, func(ctx context.Context, id raft.CommandID, term uint64) error {
			return send(ctx, Sent{ID: id, Term: term, Guard: g, Kind: kind, Request: payload})
		})
		if again, err := turned.again(err); !again {
			return result, err
		}
	}
}
