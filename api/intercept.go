package api

import (
	"context"
	"log/slog"
	"runtime/debug"
	"unicode/utf8"

	promgrpc "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// interceptors are the steps that every call passes before its service.
type interceptors struct {
	cluster Cluster
	streams *streams
	metrics *promgrpc.ServerMetrics
	clients *clientMetrics
	log     *slog.Logger
}

// unary returns the steps of a call that is no stream. Recovery comes after metrics and log, so that these see
// what a panic was turned into.
func (i *interceptors) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		i.metrics.UnaryServerInterceptor(),
		i.logUnary,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(i.recovered)),
		i.admitUnary,
	}
}

// options returns the server options that install the steps.
func (i *interceptors) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(i.unary()...),
		grpc.ChainStreamInterceptor(
			i.metrics.StreamServerInterceptor(),
			i.logStream,
			recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(i.recovered)),
			i.admitStream,
		),
	}
}

// recovered is told of a panic in a handler.
func (i *interceptors) recovered(ctx context.Context, p any) error {
	i.log.LogAttrs(ctx, slog.LevelError, "a call panicked",
		slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	return errPanic
}

func (i *interceptors) logUnary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	i.logFailure(ctx, info.FullMethod, err)
	return resp, err
}

func (i *interceptors) logStream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	err := handler(srv, ss)
	i.logFailure(ss.Context(), info.FullMethod, err)
	return err
}

func (i *interceptors) logFailure(ctx context.Context, method string, err error) {
	if err != nil && i.log.Enabled(ctx, slog.LevelDebug) {
		i.log.LogAttrs(ctx, slog.LevelDebug, "a call failed", slog.String("method", method), slog.Any("error", err))
	}
}

func (i *interceptors) admitUnary(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if i.cluster.IsLearner() && !forLearner(req) {
		return nil, errForLearner
	}
	if _, err := i.admit(ctx, "unary"); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (i *interceptors) admitStream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if i.cluster.IsLearner() && info.FullMethod != pb.Maintenance_Snapshot_FullMethodName {
		return errForLearner
	}
	needsLeader, err := i.admit(ss.Context(), "stream")
	if err != nil {
		return err
	}
	ctx, done, err := i.streams.open(ss.Context(), needsLeader)
	if err != nil {
		return err
	}
	defer done()
	return handler(srv, &openStream{ServerStream: ss, ctx: ctx})
}

// forLearner reports whether a node that does not vote answers a request, as etcd's learners do.
func forLearner(req any) bool {
	switch r := req.(type) {
	case *pb.StatusRequest:
		return true
	case *pb.RangeRequest:
		return r.GetSerializable()
	}
	return false
}

// admit judges a call of a kind by its metadata, and counts it. It reports whether the client wants to be
// served only while there is a leader.
func (i *interceptors) admit(ctx context.Context, kind string) (needsLeader bool, err error) {
	version := noVersion
	if values := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey); len(values) > 0 {
		version = values[0]
	}
	if !utf8.ValidString(version) {
		return false, errInvalidClientAPIVersion
	}
	i.clients.count(kind, version)
	leader := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	needsLeader = len(leader) > 0 && leader[0] == rpctypes.MetadataHasLeader
	if needsLeader && i.cluster.Leader() == 0 {
		return false, errNoLeader
	}
	return needsLeader, nil
}
