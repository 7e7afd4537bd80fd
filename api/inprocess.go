package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// inProcess makes calls of the services that are registered with it without a connection: what comes by HTTP is
// served by the goroutine that has read it. Streams, and calls of other services, go over a connection.
type inProcess struct {
	grpc.ClientConnInterface

	// steps are those that every call passes before its service, the first first.
	steps   []grpc.UnaryServerInterceptor
	methods map[string]method
}

// method is one of a service.
type method struct {
	service any
	handler grpc.MethodHandler
}

var _ grpc.ServiceRegistrar = (*inProcess)(nil)

func newInProcess(conn grpc.ClientConnInterface, steps *interceptors) *inProcess {
	return &inProcess{ClientConnInterface: conn, steps: steps.unary(), methods: make(map[string]method)}
}

// RegisterService adds a service.
func (c *inProcess) RegisterService(d *grpc.ServiceDesc, service any) {
	for _, m := range d.Methods {
		c.methods["/"+d.ServiceName+"/"+m.MethodName] = method{service, m.Handler}
	}
}

// Invoke makes a call, with errors as a connection gives them. The service gets a message of its own, and so does the
// caller.
func (c *inProcess) Invoke(ctx context.Context, name string, request, answer any, o ...grpc.CallOption) error {
	m, ok := c.methods[name]
	if !ok {
		return c.ClientConnInterface.Invoke(ctx, name, request, answer, o...)
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	resp, err := m.handler(m.service, metadata.NewIncomingContext(ctx, sent), func(into any) error {
		return copyMessage(into, request)
	}, c.pass)
	if err == nil {
		err = copyMessage(answer, resp)
	}
	if _, ok := status.FromError(err); !ok {
		err = status.FromContextError(err).Err()
	}
	return err
}

// pass has a call pass the steps.
func (c *inProcess) pass(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for i := len(c.steps) - 1; i >= 0; i-- {
		step, next := c.steps[i], handler
		handler = func(ctx context.Context, req any) (any, error) { return step(ctx, req, info, next) }
	}
	return handler(ctx, req)
}

func copyMessage(into, from any) error {
	dst, ok := into.(proto.Message)
	src, ok2 := from.(proto.Message)
	if !ok || !ok2 {
		return fmt.Errorf("copy %T to %T: these are no messages", from, into)
	}
	proto.Merge(dst, src)
	return nil
}
