package api

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"github.com/latchkey-db/latchkey/internal/raft"
)

func TestLease(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()

	granted, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: 60})
	check(t, err)
	diff(t, &pb.LeaseGrantResponse{Header: header(1), ID: 7, TTL: 60}, granted)
	_, err = r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: 60})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: lease already exists")
	_, err = r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: 9_000_000_001})
	wantStatus(t, err, codes.OutOfRange, "etcdserver: too large lease TTL")
	longest, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 8, TTL: 9_000_000_000})
	check(t, err)
	diff(t, &pb.LeaseGrantResponse{Header: header(1), ID: 8, TTL: 9_000_000_000}, longest)
	for i, ttl := range []int64{-5, 0, 1, 2} {
		id := int64(-10 - i)
		short, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: ttl})
		check(t, err)
		diff(t, &pb.LeaseGrantResponse{Header: header(1), ID: id, TTL: 2}, short)
	}

	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Lease: 7})
	check(t, err)
	ttl, err := r.lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	check(t, err)
	diff(t, &pb.LeaseTimeToLiveResponse{Header: header(2), ID: 7, TTL: 59, GrantedTTL: 60, Keys: [][]byte{[]byte("k")}}, ttl)
	ttl, err = r.lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true})
	check(t, err)
	diff(t, &pb.LeaseTimeToLiveResponse{Header: header(2), ID: 99, TTL: -1}, ttl)

	revoked, err := r.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 7})
	check(t, err)
	diff(t, &pb.LeaseRevokeResponse{Header: header(3)}, revoked)
	_, err = r.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 7})
	wantStatus(t, err, codes.NotFound, "etcdserver: requested lease not found")

	list, err := r.lease.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	check(t, err)
	if len(list.GetLeases()) != 5 {
		t.Errorf("LeaseLeases lists %v", list.GetLeases())
	}
	diff(t, header(3), list.GetHeader())
}

// TestShortestLease checks that the floor follows the election timeout.
func TestShortestLease(t *testing.T) {
	for timeout, want := range map[int64]int64{1000: 2, 100: 1, 2000: 3, 1334: 3} {
		c := Config{ElectionTimeout: time.Duration(timeout) * time.Millisecond}
		if got := c.shortestLease(); got != want {
			t.Errorf("election timeout %d ms: got %d s, want %d s", timeout, got, want)
		}
	}
}

func keepAliveStream(t *testing.T, r *running) pb.Lease_LeaseKeepAliveClient {
	t.Helper()
	stream, err := r.lease.LeaseKeepAlive(t.Context())
	check(t, err)
	return stream
}

func send(t *testing.T, stream pb.Lease_LeaseKeepAliveClient, id int64) {
	t.Helper()
	check(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: id}))
}

func TestKeepAlive(t *testing.T) {
	r := start(t, nil)
	_, err := r.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 1, TTL: 30})
	check(t, err)
	stream := keepAliveStream(t, r)
	send(t, stream, 1)
	got, err := stream.Recv()
	check(t, err)
	diff(t, &pb.LeaseKeepAliveResponse{Header: header(1), ID: 1, TTL: 30}, got)
	send(t, stream, 2)
	got, err = stream.Recv()
	check(t, err)
	diff(t, &pb.LeaseKeepAliveResponse{Header: header(1), ID: 2}, got)

	check(t, stream.CloseSend())
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// TestKeepAliveHeader checks that the header's revision is from before the
// renewal.
func TestKeepAliveHeader(t *testing.T) {
	r := start(t, nil)
	_, err := r.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 1, TTL: 30})
	check(t, err)
	held, entered := make(chan struct{}), make(chan struct{})
	r.set(func() { r.held[1] = held })
	stream := keepAliveStream(t, r)
	r.set(func() { r.before = func(context.Context) { close(entered) } })
	send(t, stream, 1)
	<-entered
	r.set(func() { r.before = nil })
	r.put(t, "k", "v")
	close(held)
	got, err := stream.Recv()
	check(t, err)
	diff(t, &pb.LeaseKeepAliveResponse{Header: header(1), ID: 1, TTL: 30}, got)
}

// TestKeepAliveIndependent checks that a lease which waits for its end holds up no
// other on the stream, and that everything sent is answered although the client
// has ended its side.
func TestKeepAliveIndependent(t *testing.T) {
	r := start(t, nil)
	for id := int64(1); id <= 3; id++ {
		_, err := r.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 30})
		check(t, err)
	}
	held := make(chan struct{})
	r.set(func() { r.held[1] = held })
	stream := keepAliveStream(t, r)
	for range 20 {
		send(t, stream, 1)
	}
	for range 3 {
		for id := int64(2); id <= 3; id++ {
			send(t, stream, id)
			got, err := stream.Recv()
			check(t, err)
			diff(t, &pb.LeaseKeepAliveResponse{Header: header(1), ID: id, TTL: 30}, got)
		}
	}
	check(t, stream.CloseSend())
	close(held)
	for range 20 {
		got, err := stream.Recv()
		check(t, err)
		diff(t, &pb.LeaseKeepAliveResponse{Header: header(1), ID: 1, TTL: 30}, got)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// TestKeepAliveBound checks that a stream keeps going when more renewals wait than
// it has workers for.
func TestKeepAliveBound(t *testing.T) {
	r := start(t, nil)
	_, err := r.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 1, TTL: 30})
	check(t, err)
	held := make(chan struct{})
	r.set(func() { r.held[1] = held })
	stream := keepAliveStream(t, r)
	const n = maxKeepAliveWorkers + 100
	for range n {
		send(t, stream, 1)
	}
	close(held)
	for range n {
		_, err := stream.Recv()
		check(t, err)
	}
}

func TestKeepAliveError(t *testing.T) {
	r := start(t, nil)
	r.set(func() { r.fail = raft.ErrTimeout })
	stream := keepAliveStream(t, r)
	send(t, stream, 1)
	_, err := stream.Recv()
	wantStatus(t, err, codes.Unavailable, "etcdserver: request timed out")
}
