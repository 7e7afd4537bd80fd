package fencegrpc

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/latchkey-db/latchkey/fence"
)

func TestInterceptor(t *testing.T) {
	resource := func(_ string, request any) string { return request.(*healthpb.HealthCheckRequest).GetService() }
	s := grpc.NewServer(grpc.UnaryInterceptor(UnaryServerInterceptor(new(fence.Guard), resource)))
	services := health.NewServer()
	services.SetServingStatus("r", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, services)
	l := bufconn.Listen(1 << 16)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///r",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	check := func(ctx context.Context, name string) codes.Code {
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: name})
		return status.Code(err)
	}
	ctx := t.Context()
	raw := func(token string) context.Context { return metadata.AppendToOutgoingContext(ctx, Key, token) }
	for _, step := range []struct {
		what     string
		ctx      context.Context
		resource string
		want     codes.Code
	}{
		{"no token", ctx, "r", codes.InvalidArgument},
		{"nothing fenced", ctx, "", codes.OK},
		{"first", WithToken(ctx, 7), "r", codes.OK},
		{"equal", WithToken(ctx, 7), "r", codes.OK},
		{"stale", WithToken(ctx, 6), "r", codes.FailedPrecondition},
		{"no number", raw("x"), "r", codes.InvalidArgument},
		{"two", WithToken(WithToken(ctx, 8), 9), "r", codes.InvalidArgument},
		{"higher", WithToken(ctx, 8), "r", codes.OK},
		{"overtaken", WithToken(ctx, 7), "r", codes.FailedPrecondition},
	} {
		if got := check(step.ctx, step.resource); got != step.want {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}
