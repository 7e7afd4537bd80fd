package api

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// BenchmarkHandler shows what the services add to the layers below, without the
// network.
func BenchmarkHandler(b *testing.B) {
	n := newNode(b)
	h := headers{cluster: n, revision: n.Revision}
	kv := &kvService{store: n, headers: h, rules: testRules(), admit: &admission{cluster: n, size: n.DBSize, quota: DefaultQuotaBytes}, gate: n.gate()}
	ctx := context.Background()
	put := &pb.PutRequest{Key: []byte("key"), Value: make([]byte, 256)}
	if _, err := kv.Put(ctx, put); err != nil {
		b.Fatal(err)
	}
	get := &pb.RangeRequest{Key: put.Key}
	for name, call := range map[string]func() error{
		"get/store":   func() error { _, err := n.Range(ctx, get); return err },
		"get/service": func() error { _, err := kv.Range(ctx, get); return err },
		"put/store":   func() error { _, err := n.Put(ctx, put); return err },
		"put/service": func() error { _, err := kv.Put(ctx, put); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkKeepAlive shows the cost of a keepalive over a socket, for numbers of
// them under way at a time.
func BenchmarkKeepAlive(b *testing.B) {
	for _, depth := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("depth=", depth), func(b *testing.B) {
			r := start(b, nil)
			_, err := r.lease.LeaseGrant(b.Context(), &pb.LeaseGrantRequest{ID: 1, TTL: 60})
			check(b, err)
			stream, err := r.lease.LeaseKeepAlive(b.Context())
			check(b, err)
			req := &pb.LeaseKeepAliveRequest{ID: 1}
			sent := 0
			for b.Loop() {
				for ; sent < depth; sent++ {
					check(b, stream.Send(req))
				}
				_, err := stream.Recv()
				check(b, err)
				sent--
			}
			for ; sent > 0; sent-- {
				_, err := stream.Recv()
				check(b, err)
			}
		})
	}
}
