package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"github.com/latchkey-db/latchkey/internal/raft"
)

func TestKVHeaders(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()

	got, err := r.kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
	check(t, err)
	diff(t, &pb.RangeResponse{Header: header(1)}, got)

	put, err := r.kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("1")})
	check(t, err)
	diff(t, &pb.PutResponse{Header: header(2)}, put)

	txn, err := r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opPut("b"), opGet("a"))})
	check(t, err)
	diff(t, header(3), txn.GetHeader())
	diff(t, &pb.ResponseHeader{Revision: 3}, txn.GetResponses()[1].GetResponseRange().GetHeader())

	del, err := r.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("a")})
	check(t, err)
	diff(t, &pb.DeleteRangeResponse{Header: header(4), Deleted: 1}, del)

	comp, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: 3})
	check(t, err)
	diff(t, &pb.CompactionResponse{Header: header(4)}, comp)

	_, err = r.kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Revision: 2})
	wantStatus(t, err, codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted")
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Lease: 99})
	wantStatus(t, err, codes.NotFound, "etcdserver: requested lease not found")
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("x"), IgnoreValue: true})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key not found")
}

// TestKVRefusals checks that what validation refuses never reaches the store.
func TestKVRefusals(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()
	_, err := r.kv.Range(ctx, &pb.RangeRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")
	_, err = r.kv.Put(ctx, &pb.PutRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")
	_, err = r.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")
	_, err = r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opPut("a"), opPut("a"))})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: duplicate key given in txn request")

	big := make([]byte, DefaultMaxRequestBytes)
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: big})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: request is too large")
	big = make([]byte, DefaultMaxRequestBytes+messageOverhead)
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: big})
	wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (2097160 vs. 2097152)")
	if n := r.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the store", n)
	}
}

// TestEndedContext checks that a request whose caller has gone is not handed on.
func TestEndedContext(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ru, admit := testRules(), &admission{cluster: n, size: n.DBSize, quota: DefaultQuotaBytes}
	h := headers{cluster: n, revision: n.Revision}
	kv := &kvService{store: n, headers: h, rules: ru, admit: admit, gate: n.gate()}
	le := &leaseService{leases: n, headers: h, rules: ru, admit: admit, gate: n.gate()}
	key := []byte("k")
	for name, call := range map[string]func() error{
		"Range":       func() error { _, err := kv.Range(ctx, &pb.RangeRequest{Key: key}); return err },
		"Put":         func() error { _, err := kv.Put(ctx, &pb.PutRequest{Key: key}); return err },
		"DeleteRange": func() error { _, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key}); return err },
		"Txn":         func() error { _, err := kv.Txn(ctx, &pb.TxnRequest{Success: ops(opPut("a"))}); return err },
		"Txn reading": func() error { _, err := kv.Txn(ctx, &pb.TxnRequest{}); return err },
		"Compact":     func() error { _, err := kv.Compact(ctx, &pb.CompactionRequest{}); return err },
		"LeaseGrant":  func() error { _, err := le.LeaseGrant(ctx, &pb.LeaseGrantRequest{}); return err },
		"LeaseRevoke": func() error { _, err := le.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{}); return err },
		"TimeToLive":  func() error { _, err := le.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{}); return err },
		"Leases":      func() error { _, err := le.LeaseLeases(ctx, &pb.LeaseLeasesRequest{}); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := n.calls.Load(); got != 0 {
		t.Errorf("%d calls were handed on", got)
	}
}

// TestUnknownOutcome checks what a client sees of the shard's errors, across the
// wire.
func TestUnknownOutcome(t *testing.T) {
	r := start(t, nil)
	for _, tc := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{raft.ErrTimeout, codes.Unavailable, "etcdserver: request timed out"},
		{raft.ErrTooManyRequests, codes.Unknown, "etcdserver: too many requests"},
		{context.DeadlineExceeded, codes.DeadlineExceeded, "context deadline exceeded"},
	} {
		r.set(func() { r.fail = tc.err })
		_, err := r.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a")})
		wantStatus(t, err, tc.code, tc.text)
	}
}

func TestRangeStream(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRequestBytes = 2000 })
	for i := range 25 {
		r.put(t, strings.Repeat("k", i+1), strings.Repeat("v", 200))
	}
	stream, err := r.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Limit: 20})
	check(t, err)
	kvs, chunks := 0, 0
	for last := false; !last; {
		resp, err := stream.Recv()
		check(t, err)
		chunk := resp.GetRangeResponse()
		kvs += len(chunk.GetKvs())
		chunks++
		if last = chunk.GetHeader() != nil; last {
			diff(t, header(26), chunk.GetHeader())
			if chunk.GetCount() != 25 || !chunk.GetMore() {
				t.Errorf("last chunk says count %d and more %v", chunk.GetCount(), chunk.GetMore())
			}
		} else if chunk.GetCount() != 0 || chunk.GetMore() {
			t.Errorf("chunk %d says count %d and more %v", chunks, chunk.GetCount(), chunk.GetMore())
		}
	}
	if kvs != 20 || chunks < 2 {
		t.Errorf("got %d keys in %d chunks", kvs, chunks)
	}
	stream, err = r.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("a"), MinModRevision: 1})
	check(t, err)
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unimplemented, "RangeStream does not support revision filters")
}
