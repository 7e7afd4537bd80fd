package lock

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// ErrNotHolder is returned for a token that is not of a lock that the client has.
var ErrNotHolder = errors.New("lock: the client does not have the lock by this token")

var (
	// errAbsent says that there is no place of a token, though the token may have been one's.
	errAbsent = errors.New("there is no such place")
	// errUnchanged has a place left as it is.
	errUnchanged = errors.New("nothing is to be changed")
)

// Release gives up what one acquire of the client has got, that with the request's id or
// else the last; with the last one goes the lock. To release what is released, or has
// expired, changes nothing and is no error: nobody can tell them apart.
func (s *Service) Release(ctx context.Context, name, client string, token int64, request string) error {
	if err := checkToken(name, client, token); err != nil {
		return err
	}
	// What this node knows of the place is enough while it is the newest, which the write tells.
	seen := s.granted.take(prefixOf([]byte(name)), client, token)
	if seen == nil {
		seen = s.sight(ctx, name, client, token)
	}
	found := func() (p *known, err error) {
		if p, seen = seen, nil; p != nil {
			return p, nil
		}
		kv, err := s.find(ctx, name, token)
		if err != nil {
			return nil, err
		}
		return knownOf(kv), nil
	}
	err := s.change(ctx, found, func(e *Entry) error {
		if e.Client != client {
			return ErrNotHolder
		}
		ended := request
		if last := len(e.Calls) - 1; ended == "" && last >= 0 {
			ended = e.Calls[last].ID
		}
		e.Calls = withoutID(e.Calls, ended)
		return nil
	})
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// ForceRelease takes a lock away from whoever has it by a token, or a place in the queue. The
// reason is written first, so that the history of the place ends with it.
func (s *Service) ForceRelease(ctx context.Context, name string, token int64, reason string) error {
	if err := checkToken(name, "", token); err != nil {
		return err
	}
	if len(reason) > MaxMetadata {
		return &FieldError{"reason", "is too long"}
	}
	for {
		kv, err := s.find(ctx, name, token)
		if errors.Is(err, errAbsent) {
			return ErrNotHolder
		}
		if err != nil {
			return err
		}
		e := queue.EntryOf(kv)
		e.Reason = reason
		resp, err := s.rewrite(ctx, kv, &e, kv.Lease)
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			continue
		}
		kv.ModRevision = resp.Header.Revision
		if done, err := s.end(ctx, kv, &e); done || err != nil {
			return err
		}
	}
}

func checkToken(name, client string, token int64) error {
	if token <= 0 {
		return &FieldError{"fencing_token", "must be above 0"}
	}
	return checkNames(name, client)
}

// change changes the calls that a place is for, which find finds, by fn. Both may be called
// again, and their errors end the call. A place that is for none any more is deleted: that is one write, and
// the next may have the lock by it.
func (s *Service) change(ctx context.Context, find func() (*known, error), fn func(*Entry) error) error {
	for {
		p, err := find()
		if err != nil {
			return err
		}
		switch err := fn(&p.says); {
		case errors.Is(err, errUnchanged):
			return nil
		case err != nil:
			return err
		}
		if done, err := s.noted(ctx, p.kv, &p.says); done || err != nil {
			return err
		}
	}
}

// noted brings a place's key in line with what it is for now, if it is still as it was found.
func (s *Service) noted(ctx context.Context, found *mvccpb.KeyValue, e *Entry) (done bool, err error) {
	if len(e.Calls) == 0 {
		return s.end(ctx, found, e)
	}
	resp, err := s.rewrite(ctx, found, e, found.Lease)
	return err == nil && resp.Succeeded, err
}

// end deletes a place, if its key is still as it was found, and the lease if that was for
// it alone: nothing else can have been attached to it.
func (s *Service) end(ctx context.Context, found *mvccpb.KeyValue, e *Entry) (done bool, err error) {
	deletes := []*pb.RequestOp{deleteOp(found.Key)}
	if e.Guard != nil {
		deletes = append(deletes, deleteOp([]byte(e.Guard.Key)))
	}
	resp, err := s.store.Txn(ctx, &pb.TxnRequest{Compare: unchanged(found), Success: deletes})
	if err != nil || !resp.Succeeded {
		return false, err
	}
	if e.Own {
		s.revoke(ctx, found.Lease)
		s.revokeGuard(ctx, e.Guard)
	}
	return true, nil
}

// look returns a key, or errAbsent.
func (s *Service) look(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	resp, err := s.store.RangeInShard(ctx, &pb.RangeRequest{Key: []byte(key)})
	switch {
	case err != nil:
		return nil, err
	case len(resp.Kvs) == 0:
		return nil, errAbsent
	default:
		return resp.Kvs[0], nil
	}
}

// byToken asks for the key that was given a token, if it is there: the youngest that is not
// younger than the token, for a queue's index the matter of a moment.
func byToken(name string, token int64) *pb.RangeRequest {
	r := oldest(prefixOf([]byte(name)))
	r.SortOrder, r.MaxCreateRevision = pb.RangeRequest_DESCEND, token
	return r
}

// placeIn returns the key of the place that was given a token from the answer to byToken, nil if there is
// none.
func placeIn(resp *pb.RangeResponse, token int64) *mvccpb.KeyValue {
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != token || isGuard(resp.Kvs[0]) {
		return nil
	}
	return resp.Kvs[0]
}

// find returns the key of the place that was given a token. errAbsent says that there is none
// any more, ErrNotHolder that there can't have been.
func (s *Service) find(ctx context.Context, name string, token int64) (*mvccpb.KeyValue, error) {
	resp, err := s.store.Range(ctx, byToken(name, token))
	if err != nil {
		return nil, err
	}
	if token > resp.Header.Revision {
		return nil, ErrNotHolder
	}
	if kv := placeIn(resp, token); kv != nil {
		return kv, nil
	}
	return nil, errAbsent
}

// sight returns a client's place as this node's replica has it, without a proof, or nil. Only a
// write that compares its mod revision, and so is checked for rights, may come of it.
func (s *Service) sight(ctx context.Context, name, client string, token int64) *known {
	resp, err := s.node.Peek(ctx, byToken(name, token), 0)
	if err != nil {
		return nil // a proof will tell
	}
	if kv := placeIn(resp, token); kv != nil {
		if p := knownOf(kv); p.says.Client == client {
			return p
		}
	}
	return nil
}
