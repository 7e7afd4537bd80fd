package lock

import (
	"context"
	"errors"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// DefaultTTL is the time to live, in seconds, of the lease that a call without one gets.
// Nobody renews it.
const DefaultTTL = 60

// Place is a caller's place in a queue.
type Place struct {
	// Key is the key that the caller competes with, Lease what it is attached to.
	Key   string
	Lease int64
	// Token is the key's create revision: the fencing token of who has the lock.
	Token int64
}

// entered is a place as the transaction found or made it.
type entered struct {
	Place
	header *pb.ResponseHeader
	// found is the key that was there before, nil if it was made.
	found *mvccpb.KeyValue
	// first says that the place was the first of all.
	first bool
}

// prefixOf returns what all keys of a name's queue begin with.
func prefixOf(name []byte) string { return string(name) + "/" }

// oldest is a request for the oldest key of a queue.
func oldest(prefix string) *pb.RangeRequest {
	return &pb.RangeRequest{
		Key: []byte(prefix), RangeEnd: keys.PrefixEnd([]byte(prefix)), Limit: 1,
		SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND,
	}
}

// leased returns the caller's lease, or a new one if it names none.
func (s *Service) leased(ctx context.Context, lease int64) (int64, error) {
	if lease != 0 {
		return lease, nil
	}
	resp, err := s.store.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: DefaultTTL})
	if err != nil {
		return 0, err
	}
	return resp.ID, nil
}

// enter puts the caller into a queue, if its lease has no place there: one transaction,
// which tells whether the caller is the first.
func (s *Service) enter(ctx context.Context, prefix string, lease int64, value []byte) (entered, error) {
	lease, err := s.leased(ctx, lease)
	if err != nil {
		return entered{}, err
	}
	return s.enterAs(ctx, prefix, prefix+strconv.FormatInt(lease, 16), lease, value)
}

// enterAs is enter by a key of the queue, together with more if a place is made.
func (s *Service) enterAs(
	ctx context.Context, prefix, name string, lease int64, value []byte, more ...*pb.RequestOp,
) (entered, error) {
	p := Place{Key: name, Lease: lease}
	key := []byte(name)
	first := s.first(prefix)
	resp, err := s.store.Txn(ctx, &pb.TxnRequest{
		Compare: created(key, 0),
		Success: slices.Concat([]*pb.RequestOp{putOp(&pb.PutRequest{Key: key, Value: value, Lease: lease})}, first, more),
		Failure: append([]*pb.RequestOp{rangeOp(&pb.RangeRequest{Key: key})}, first...),
	})
	if err != nil {
		return entered{}, err
	}
	e := entered{Place: p, header: resp.Header}
	e.Token = resp.Header.Revision
	if !resp.Succeeded {
		e.found = resp.Responses[0].GetResponseRange().Kvs[0]
		e.Token = e.found.CreateRevision
	}
	e.first = isFirst(resp, e.Token)
	return e, nil
}

// first is what a transaction asks, behind its one operation, to know who is the first of a
// queue. Where the queue lies on several shards it can't.
func (s *Service) first(prefix string) []*pb.RequestOp {
	r := oldest(prefix)
	r.KeysOnly = true
	if s.store.Divided(r.Key, r.RangeEnd) {
		return nil
	}
	return []*pb.RequestOp{rangeOp(r)}
}

// isFirst reports whether a transaction that asked first has found a place to be that.
func isFirst(resp *pb.TxnResponse, token int64) bool {
	if len(resp.Responses) < 2 {
		return false
	}
	kvs := resp.Responses[1].GetResponseRange().GetKvs()
	return len(kvs) > 0 && kvs[0].CreateRevision == token
}

// await waits until the place is the first of its queue, and proves that it still is one.
// The header is of the proof.
func (s *Service) await(ctx context.Context, prefix string, p Place) (*pb.ResponseHeader, error) {
	w := &waiter{key: p.Key, created: p.Token, alone: true, turn: make(chan turn, 1)}
	leave, err := s.join(prefix, w)
	if err != nil {
		return nil, err
	}
	defer leave()
	var t turn
	select {
	case t = <-w.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.err != nil {
		return nil, t.err
	}
	header, err := s.prove(ctx, p)
	if err != nil {
		return nil, err
	}
	// The proof is of the place's shard alone, which may not have heard of a release in
	// another.
	header.Revision = max(header.Revision, t.rev)
	return header, nil
}

// prove proves that a place which was seen to be the first is there. Once it is the first it
// remains that for as long as it is there.
func (s *Service) prove(ctx context.Context, p Place) (*pb.ResponseHeader, error) {
	resp, err := s.store.RangeInShard(ctx, p.find())
	switch {
	case err != nil:
		return nil, err
	case !p.is(resp):
		return nil, ErrLost
	default:
		return resp.Header, nil
	}
}

// find asks for the place's key.
func (p *Place) find() *pb.RangeRequest { return &pb.RangeRequest{Key: []byte(p.Key), KeysOnly: true} }

// is reports whether an answer to find has the place.
func (p *Place) is(resp *pb.RangeResponse) bool {
	return len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == p.Token
}

// stay waits until the caller that has entered stands first. One that fails leaves.
func (s *Service) stay(ctx context.Context, prefix string, e *entered) (*pb.ResponseHeader, error) {
	if e.first {
		return e.header, nil
	}
	header, err := s.await(ctx, prefix, e.Place)
	if err != nil && !errors.Is(err, ErrLost) {
		s.quit(ctx, e.Place)
	}
	return header, err
}

// quit gives a place up for a caller that has failed, and may be gone.
func (s *Service) quit(ctx context.Context, p Place) {
	s.depart(ctx, func(ctx context.Context) {
		// Where that fails too the place ends with its lease.
		_, _ = s.remove(ctx, []byte(p.Key), p.Token)
	})
}

// depart calls fn, by which a caller leaves, once there is room for one more who does: within
// maxDeparture or not at all.
func (s *Service) depart(ctx context.Context, fn func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxDeparture)
	defer cancel()
	select {
	case s.leaving <- struct{}{}:
		defer func() { <-s.leaving }()
		fn(ctx)
	case <-ctx.Done():
	}
}

// remove deletes a place, and nothing that was put in its stead since.
func (s *Service) remove(ctx context.Context, key []byte, token int64) (*pb.ResponseHeader, error) {
	resp, err := s.store.Txn(ctx, &pb.TxnRequest{
		Compare: created(key, token),
		Success: []*pb.RequestOp{deleteOp(key)},
	})
	if err != nil {
		return nil, err
	}
	return resp.Header, nil
}

// unchanged compares a key with what was found.
func unchanged(found *mvccpb.KeyValue) []*pb.Compare {
	return []*pb.Compare{{
		Target: pb.Compare_MOD, Key: found.Key, TargetUnion: &pb.Compare_ModRevision{ModRevision: found.ModRevision},
	}}
}

// created compares a key's create revision.
func created(key []byte, rev int64) []*pb.Compare {
	return []*pb.Compare{{
		Target: pb.Compare_CREATE, Key: key, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev},
	}}
}

func putOp(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func deleteOp(key []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: key},
	}}
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}
