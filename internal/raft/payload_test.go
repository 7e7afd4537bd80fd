package raft

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A field of a newer client is left out; one that is in the log stops who does not know it.
func TestUnknownFields(t *testing.T) {
	news := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 7)
	put := func(unknown []byte) *pb.PutRequest {
		r := &pb.PutRequest{Key: []byte("k"), Value: []byte("v")}
		r.ProtoReflect().SetUnknown(unknown)
		return r
	}
	inside := func(unknown []byte) *pb.TxnRequest {
		return &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("k"), TargetUnion: &pb.Compare_Version{Version: 1}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
				Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put(unknown)}}},
			}}}},
		}
	}
	for name, pair := range map[string][2]proto.Message{
		"put":          {put(news), put(nil)},
		"inside a txn": {inside(news), inside(nil)},
	} {
		sent, plain := pair[0], pair[1]
		logged, err := EncodeRequest(sent)
		if err != nil {
			t.Fatal(err)
		}
		got := plain.ProtoReflect().New().Interface()
		if err := DecodeRequest(logged, got); err != nil || !proto.Equal(got, plain) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, plain)
		}
		if proto.Equal(sent, plain) {
			t.Errorf("%s: the caller's message was changed", name)
		}
		whole, err := proto.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		if err := DecodeRequest(whole, got); !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%s: unknown field in the log: %v", name, err)
		}
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	payload, err := EncodeRequest(&pb.PutRequest{Key: []byte("some/key"), Value: []byte("some value"), Lease: 7})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("strict", func(b *testing.B) {
		for b.Loop() {
			if err := DecodeRequest(payload, new(pb.PutRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			if err := proto.Unmarshal(payload, new(pb.PutRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
