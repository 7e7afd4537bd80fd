package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// The origin of a command is the node that holds the client's call. Where another
// node leads, the origin hands the command over under an id of its own, aimed at the
// term that it knows, and learns from its own replica what became of it:
//
//   - the id applies: the result is built here, as it is at the leader;
//   - a begin entry above the term applies from the log, and the id has not: it never
//     will;
//   - the state jumps: nobody knows.
//
// What the leader says is needed only where it certainly will not apply the command.
// So a leader that dies costs the client a pause and not an error, and what a node has
// answered its own replica has applied.

// Sent is one of etcd's requests on its way from its origin to the leader.
type Sent struct {
	// ID names the command; it is in at most one batch.
	ID CommandID
	// Term is the only one in which the leader may propose it.
	Term uint64
	// Guard is what the sender has checked, nil if nothing.
	Guard *Guard
	// Kind and Request are the request's.
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
	case KindLeaseRevoke:
		m = new(pb.LeaseRevokeRequest)
	default:
		return nil, fmt.Errorf("%w: kind %d", errBadSent, s.Kind)
	}
	if err := proto.Unmarshal(s.Request, m); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadSent, err)
	}
	return m, nil
}

// Carry puts a command of another node through the log. It returns nil when the command
// has applied here, whatever came of it: its origin hears that from its own replica.
// ErrTimeout, ErrStopped and a context's error say that it may apply; any other
// that it never will.
func (d *Data) Carry(ctx context.Context, s Sent) error {
	request, err := s.request()
	if err != nil {
		return err
	}
	o, err := d.submit(ctx, Proposal{Kind: s.Kind, Payload: s.Request, Term: s.Term, ID: s.ID}, request, s.Guard)
	if err == nil && !o.applied {
		err = o.err
	}
	return err
}

// WriteElsewhere is Write, with a guard WriteGuarded, for a shard that another node
// leads. hand hands the command to that node, whose Carry says what hand returns.
func (d *Data) WriteElsewhere(
	ctx context.Context, g *Guard, kind Kind, request proto.Message, hand func(context.Context, Sent) error,
) (any, error) {
	payload, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	var turned turnedAway
	for {
		result, err := d.replica.elsewhere(ctx, func(ctx context.Context, id CommandID, term uint64) error {
			return hand(ctx, Sent{ID: id, Term: term, Guard: g, Kind: kind, Request: payload})
		})
		if again, err := turned.again(err); !again {
			return result, err
		}
	}
}

// elsewhere has the leader on another node carry out a command and returns what
// became of it. Errors are those of Submit. hand need not return before its context
// ends.
func (r *Replica) elsewhere(ctx context.Context, hand func(context.Context, CommandID, uint64) error) (any, error) {
	id := r.host.nextID()
	done := make(chan outcome, 1)
	term, err := r.expect(id, func(o outcome) { done <- o })
	if err != nil {
		return nil, err
	}
	defer r.forget(id)
	// The leader's answer may come after the result, and is then not waited for.
	handing, cancel := context.WithCancel(r.ctx)
	handed := make(chan error, 1)
	go func() {
		defer r.wg.Done()
		defer cancel()
		r.stall("aimed")
		handed <- hand(handing, id, term)
	}()
	for {
		select {
		case o := <-done:
			return o.result, o.err
		case err := <-handed:
			if err != nil && !unknown(err) {
				return nil, err
			}
			handed = nil
		case <-ctx.Done():
			cancel()
			r.observer.ProposalFailed()
			return nil, context.Cause(ctx)
		}
	}
}

// unknown reports whether an error leaves open whether a command applies.
func unknown(err error) bool {
	return errors.Is(err, ErrTimeout) || errors.Is(err, ErrStopped) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// expect has settled hear what becomes of a command that this node hands to the
// leader on another, and returns the term at which to aim it. The goroutine that hands
// it over counts as the replica's.
func (r *Replica) expect(id CommandID, settled func(outcome)) (term uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, ErrStopped
	case r.known.ReplicaID == 0, r.known.ReplicaID == r.replicaID, r.known.Term < r.begun:
		return 0, ErrNotLeader
	}
	if r.expected == nil {
		r.expected = make(map[uint64]*call)
	}
	r.wg.Add(1)
	r.expected[id.Sequence] = &call{Proposal: Proposal{Term: r.known.Term}, settled: settled}
	return r.known.Term, nil
}

// forget ends an expectation.
func (r *Replica) forget(id CommandID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expected, id.Sequence)
}

// came takes the call that expects a command, or returns nil. The state machine calls
// it for each command that it accepts and that nobody here proposed.
func (r *Replica) came(id CommandID) *call {
	if id.Origin != r.host.origin {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.expected[id.Sequence]
	delete(r.expected, id.Sequence)
	return c
}

// overtakenLocked takes the calls whose commands the log has passed: those aimed at
// terms below the one that begins. r.mu must be held.
func (r *Replica) overtakenLocked(term uint64, done []settlement) []settlement {
	r.begun = max(r.begun, term)
	for sequence, c := range r.expected {
		if c.Term < r.begun {
			delete(r.expected, sequence)
			done = append(done, settlement{c, outcome{err: ErrNotApplied}})
		}
	}
	return done
}

// takeExpectedLocked takes all calls that expect a command. r.mu must be held.
func (r *Replica) takeExpectedLocked() []*call {
	calls := slices.Collect(maps.Values(r.expected))
	clear(r.expected)
	return calls
}
