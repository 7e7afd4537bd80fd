package api

import (
	"context"
	"strconv"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// FencingTokenHeader names the header of a Lock answer that carries the fencing
// token: the create revision of the holder's key, in decimal.
const FencingTokenHeader = "latchkey-fencing-token"

// lockService is etcd's Lock service. A waiter whose own key goes, mostly because
// its lease has ended, hears of that at once.
type lockService struct {
	v3lockpb.UnsafeLockServer

	callers *callers
}

var _ v3lockpb.LockServer = (*lockService)(nil)

// Lock returns when the caller holds the lock. The answer's header carries the
// fencing token.
func (s *lockService) Lock(ctx context.Context, r *v3lockpb.LockRequest) (*v3lockpb.LockResponse, error) {
	lockCtx, c, err := s.callers.open(ctx, errLockLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3lock.NewLockServer(c.client).Lock(lockCtx, r)
	if err != nil {
		return nil, endOfCall(lockCtx, err)
	}
	switch kept, err := c.keeps(lockCtx); {
	case err != nil:
		return nil, endOfCall(lockCtx, err)
	case !kept:
		return nil, errLockLost
	}
	token := metadata.Pairs(FencingTokenHeader, strconv.FormatInt(c.rev, 10))
	if err := grpc.SetHeader(ctx, token); err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

// Unlock gives a lock up, or a place in its queue.
func (s *lockService) Unlock(ctx context.Context, r *v3lockpb.UnlockRequest) (*v3lockpb.UnlockResponse, error) {
	ctx, c, err := s.callers.open(ctx, errLockLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3lock.NewLockServer(c.client).Unlock(ctx, r)
	return resp, endOfCall(ctx, err)
}

// endOfCall returns the error of a Lock or Election call as it is, unless the
// server ended the call: then its reason.
func endOfCall(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return endOf(ctx)
	}
	return err
}
