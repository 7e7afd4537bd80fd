package api

import "net/http"

// Traffic is what is served on a listener.
type Traffic int

const (
	// AllTraffic is gRPC and HTTP.
	AllTraffic Traffic = iota
	// GRPCTraffic is gRPC and nothing else.
	GRPCTraffic
	// HTTPTraffic is all of HTTP, without gRPC.
	HTTPTraffic
	// MetricsTraffic is the metrics and the health checks, to any host and origin.
	MetricsTraffic
)

// grpc reports whether gRPC is among the traffic.
func (t Traffic) grpc() bool { return t == AllTraffic || t == GRPCTraffic }

// protocols are what net/http serves of the traffic: of HTTP/2 without TLS only what
// a fork has sniffed at comes to it.
func (t Traffic) protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(t == AllTraffic)
	return p
}
