package peer

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// raw hands bytes to gRPC as they are. What is sent must not be changed afterwards.
type raw struct{}

var _ encoding.CodecV2 = raw{}

// Marshal takes a *[]byte.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errStream, v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal takes a *[]byte, which gets bytes of its own.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%w: %T", errStream, v)
	}
	*b = data.Materialize()
	return nil
}

// Name is part of the content type on the wire.
func (raw) Name() string { return "latchkey-raw" }
