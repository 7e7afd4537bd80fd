// Package fencegrpc has gRPC servers refuse calls with stale fencing tokens.
package fencegrpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/fence"
)

// Key is that of the metadata of a call that carries the token, in decimal.
const Key = "fencing-token"

// WithToken has calls with the context returned carry a token.
func WithToken(ctx context.Context, t fence.Token) context.Context {
	return metadata.AppendToOutgoingContext(ctx, Key, t.String())
}

// Resource names what a call is about. What it returns "" for is not fenced.
type Resource func(method string, request any) string

// UnaryServerInterceptor lets calls through by their tokens, each while nobody with a
// lower token is being served. A call without one is answered InvalidArgument, one with a
// stale token FailedPrecondition: repeating it does not help, whoever made it has lost the
// lock.
func UnaryServerInterceptor(g *fence.Guard, resource Resource) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		name := resource(info.FullMethod, request)
		if name == "" {
			return next(ctx, request)
		}
		t, err := token(ctx)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		leave, err := g.Enter(ctx, name, t)
		switch {
		case errors.Is(err, fence.ErrStale):
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		case err != nil:
			return nil, status.FromContextError(err).Err()
		}
		defer leave()
		return next(ctx, request)
	}
}

var errMissing = errors.New("fence: the call's metadata has no " + Key)

// token returns the one that a call carries.
func token(ctx context.Context) (fence.Token, error) {
	switch values := metadata.ValueFromIncomingContext(ctx, Key); len(values) {
	case 0:
		return 0, errMissing
	case 1:
		return fence.ParseToken(values[0])
	default:
		return 0, fence.ErrInvalid
	}
}
