package api

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// countingCodec is gRPC's codec for protobuf that counts the bytes of messages.
type countingCodec struct {
	encoding.CodecV2

	sent, received prometheus.Counter
}

func newCountingCodec(registry *prometheus.Registry) (*countingCodec, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "etcd", Subsystem: "network", Name: name, Help: help,
		})
	}
	c := &countingCodec{
		CodecV2:  encoding.GetCodecV2(proto.Name),
		sent:     counter("client_grpc_sent_bytes_total", "The total number of bytes sent to grpc clients."),
		received: counter("client_grpc_received_bytes_total", "The total number of bytes received from grpc clients."),
	}
	for _, m := range []prometheus.Collector{c.sent, c.received} {
		if err := registry.Register(m); err != nil {
			return nil, fmt.Errorf("register network metrics: %w", err)
		}
	}
	return c, nil
}

// Marshal encodes v and counts it as sent.
func (c *countingCodec) Marshal(v any) (mem.BufferSlice, error) {
	out, err := c.CodecV2.Marshal(v)
	c.sent.Add(float64(out.Len()))
	return out, err
}

// Unmarshal counts data as received and decodes it into v.
func (c *countingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.received.Add(float64(data.Len()))
	return c.CodecV2.Unmarshal(data, v)
}
