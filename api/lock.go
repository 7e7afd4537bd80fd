package api

import (
	"context"
	"errors"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/latchkey-db/latchkey/lock"
)

// FencingTokenHeader names the header of a Lock answer that carries the fencing
// token: the create revision of the holder's key, in decimal.
const FencingTokenHeader = "latchkey-fencing-token"

// lockService is etcd's Lock service.
type lockService struct {
	v3lockpb.UnsafeLockServer

	turns turns
}

var _ v3lockpb.LockServer = (*lockService)(nil)

// Lock returns when the caller holds the lock. The answer's header carries the
// fencing token.
func (s *lockService) Lock(ctx context.Context, r *v3lockpb.LockRequest) (resp *v3lockpb.LockResponse, err error) {
	err = s.turns.take(ctx, errLockLost, func(waiting context.Context) error {
		held, err := s.turns.locks.Lock(waiting, r.GetName(), r.GetLease())
		if err != nil {
			return err
		}
		resp = &v3lockpb.LockResponse{Header: held.Header, Key: []byte(held.Key)}
		return grpc.SetHeader(ctx, metadata.Pairs(FencingTokenHeader, strconv.FormatInt(held.Token, 10)))
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Unlock gives a lock up, or a place in its queue.
func (s *lockService) Unlock(ctx context.Context, r *v3lockpb.UnlockRequest) (resp *v3lockpb.UnlockResponse, err error) {
	err = s.turns.take(ctx, errLockLost, func(ctx context.Context) error {
		header, err := s.turns.locks.Unlock(ctx, r.GetKey())
		resp = &v3lockpb.UnlockResponse{Header: header}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// turns are locks and elections as etcd's services serve them.
type turns struct {
	locks   *lock.Service
	streams *streams
	headers headers
}

// take makes a call, which may wait as long as streams run and ends with the server as they
// do. lost is what a caller hears whose own key has gone.
func (t turns) take(ctx context.Context, lost error, call func(context.Context) error) error {
	ctx, done, err := t.streams.open(ctx, false)
	if err != nil {
		return err
	}
	defer done()
	err = call(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return endOf(ctx)
	case errors.Is(err, lock.ErrLost):
		return lost
	default:
		return passedOn(toStatus(err))
	}
}

// passedOn is an error as etcd's Lock and Election pass one on: what etcd's client library
// knows by its text loses its code.
func passedOn(err error) error {
	var known rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &known) {
		return unknown(known.Error())
	}
	return err
}
