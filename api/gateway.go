package api

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	pbgw "go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	electiongw "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw"
	lockgw "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonPerByte is how many bytes of JSON a byte of a message may take.
const jsonPerByte = 4

// gateway serves etcd's JSON API: it turns a request into a call of the gRPC
// services, over a connection in the process, and streams into lines of JSON or
// the messages of a websocket.
type gateway struct {
	mux        *runtime.ServeMux
	marshaler  runtime.Marshaler
	websockets http.Handler
	conn       *grpc.ClientConn
	// maxBody bounds the bytes of a request's body, or of a message in the body of
	// a stream.
	maxBody int64
}

// newGateway returns a gateway to the server that dial connects to.
func newGateway(dial func(context.Context) (net.Conn, error), maxMessage int, log *slog.Logger) (*gateway, error) {
	conn, err := grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
	if err != nil {
		return nil, fmt.Errorf("make connection of the gateway: %w", err)
	}
	g := &gateway{
		conn:    conn,
		maxBody: jsonPerByte * int64(maxMessage),
		marshaler: &runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
		}},
	}
	g.mux = runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, g.marshaler))
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		pbgw.RegisterKVHandler, pbgw.RegisterWatchHandler, pbgw.RegisterLeaseHandler, pbgw.RegisterClusterHandler,
		pbgw.RegisterMaintenanceHandler, pbgw.RegisterAuthHandler, lockgw.RegisterLockHandler,
		electiongw.RegisterElectionHandler,
	} {
		if err := register(context.Background(), g.mux, conn); err != nil {
			return nil, fmt.Errorf("register routes of the gateway: %w", err)
		}
	}
	g.websockets = &websockets{next: g.serve, maxMessage: g.maxBody, log: log}
	return g, nil
}

// ServeHTTP serves one request, or the websocket that it asks for.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.websockets.ServeHTTP(w, r) }

// serve serves one request. A stream's first message is looked at before the
// stream is opened: afterwards the gateway could not tell the client that it can't
// read it.
func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	var first proto.Message
	if r.Method == http.MethodPost {
		switch r.URL.Path {
		case "/v3/watch":
			first = &pb.WatchRequest{}
		case "/v3/lease/keepalive":
			first = &pb.LeaseKeepAliveRequest{}
		}
	}
	if first == nil {
		r.Body = http.MaxBytesReader(w, r.Body, g.maxBody)
		g.mux.ServeHTTP(w, r)
		return
	}
	messages := newMessageReader(r.Body, g.maxBody)
	text, err := messages.peek()
	if err == nil {
		err = g.marshaler.Unmarshal(text, first)
	}
	if err != nil {
		runtime.HTTPError(r.Context(), g.mux, g.marshaler, w, r, invalid(err.Error()))
		return
	}
	r.Body = messages
	g.mux.ServeHTTP(w, r)
}

// close closes the gateway's connection, which ends its calls.
func (g *gateway) close() {
	_ = g.conn.Close() // fails only where it is closed already
}
