package harness

import (
	"context"
	"os"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Served is a server process with clients of its services. Its methods fail the
// test where a call fails.
type Served struct {
	*Process
	// C is a client of all services, which tries again what fails.
	C *clientv3.Client
	// Conn is a connection without clientv3's retries.
	Conn        *grpc.ClientConn
	KV          pb.KVClient
	Watch       pb.WatchClient
	Lease       pb.LeaseClient
	Maintenance pb.MaintenanceClient
}

// Serve starts a server on an empty directory.
func Serve(tb testing.TB, args ...string) *Served {
	tb.Helper()
	s := &Served{Process: NewProcess(tb, args...)}
	s.C = s.Client()
	s.Conn = s.Connect()
	s.KV, s.Watch = pb.NewKVClient(s.Conn), pb.NewWatchClient(s.Conn)
	s.Lease, s.Maintenance = pb.NewLeaseClient(s.Conn), pb.NewMaintenanceClient(s.Conn)
	tb.Cleanup(func() { closeAll(s.C) })
	return s
}

// Connect opens a connection of its own, which the test's end closes.
func (s *Served) Connect(opts ...grpc.DialOption) *grpc.ClientConn {
	s.T.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(FastReconnect),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
	}, opts...)
	conn, err := grpc.NewClient(s.Addr, opts...)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { closeAll(conn) })
	return conn
}

// Wipe removes the data of a server that doesn't run.
func (s *Served) Wipe() {
	s.T.Helper()
	if err := os.RemoveAll(s.Dir); err != nil {
		s.T.Fatal(err)
	}
}

// Bound returns a context for one step of a test.
func (s *Served) Bound() context.Context {
	ctx, cancel := context.WithTimeout(s.T.Context(), LongWait)
	s.T.Cleanup(cancel)
	return ctx
}

// Put writes a key and returns the revision.
func (s *Served) Put(key, value string) int64 {
	s.T.Helper()
	return s.PutRequest(&pb.PutRequest{Key: []byte(key), Value: []byte(value)})
}

// PutRequest makes a put and returns the revision.
func (s *Served) PutRequest(r *pb.PutRequest) int64 {
	s.T.Helper()
	resp, err := s.KV.Put(s.Bound(), r)
	if err != nil {
		s.T.Fatalf("put %q: %v", r.Key, err)
	}
	return resp.Header.Revision
}

// Get reads one key; nil says that it is missing.
func (s *Served) Get(key string) []byte {
	s.T.Helper()
	resp := s.Read(&pb.RangeRequest{Key: []byte(key)})
	if len(resp.Kvs) == 0 {
		return nil
	}
	return append([]byte{}, resp.Kvs[0].Value...)
}

// Read makes a range request.
func (s *Served) Read(r *pb.RangeRequest) *pb.RangeResponse {
	s.T.Helper()
	resp, err := s.KV.Range(s.Bound(), r)
	if err != nil {
		s.T.Fatalf("range %q: %v", r.Key, err)
	}
	return resp
}

// Count counts the keys of a prefix.
func (s *Served) Count(prefix string) int64 {
	s.T.Helper()
	return s.Read(UnderPrefix(prefix, &pb.RangeRequest{CountOnly: true})).Count
}

// UnderPrefix fills in the key and range end of a prefix.
func UnderPrefix(prefix string, r *pb.RangeRequest) *pb.RangeRequest {
	r.Key, r.RangeEnd = []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
	return r
}

// Delete deletes one key and returns the revision.
func (s *Served) Delete(key string) int64 {
	s.T.Helper()
	resp, err := s.KV.DeleteRange(s.Bound(), &pb.DeleteRangeRequest{Key: []byte(key)})
	if err != nil {
		s.T.Fatalf("delete %q: %v", key, err)
	}
	return resp.Header.Revision
}

// DeletePrefix deletes all keys of a prefix.
func (s *Served) DeletePrefix(prefix string) {
	s.T.Helper()
	r := UnderPrefix(prefix, &pb.RangeRequest{})
	if _, err := s.KV.DeleteRange(s.Bound(), &pb.DeleteRangeRequest{Key: r.Key, RangeEnd: r.RangeEnd}); err != nil {
		s.T.Fatalf("delete %q: %v", prefix, err)
	}
}

// Txn makes a transaction.
func (s *Served) Txn(r *pb.TxnRequest) *pb.TxnResponse {
	s.T.Helper()
	resp, err := s.KV.Txn(s.Bound(), r)
	if err != nil {
		s.T.Fatalf("txn: %v", err)
	}
	return resp
}

// Compact drops what is older than a revision, and waits until it is gone.
func (s *Served) Compact(rev int64) {
	s.T.Helper()
	if _, err := s.KV.Compact(s.Bound(), &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
		s.T.Fatalf("compact %d: %v", rev, err)
	}
}

// Revision returns the store's revision.
func (s *Served) Revision() int64 {
	s.T.Helper()
	return s.Read(&pb.RangeRequest{Key: []byte("ready")}).Header.Revision
}

// Grant grants a lease; id 0 lets the server pick one.
func (s *Served) Grant(id, ttl int64) int64 {
	s.T.Helper()
	resp, err := s.Lease.LeaseGrant(s.Bound(), &pb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err != nil {
		s.T.Fatalf("grant %d: %v", id, err)
	}
	return resp.ID
}

// Revoke ends a lease and returns the revision.
func (s *Served) Revoke(id int64) int64 {
	s.T.Helper()
	resp, err := s.Lease.LeaseRevoke(s.Bound(), &pb.LeaseRevokeRequest{ID: id})
	if err != nil {
		s.T.Fatalf("revoke %d: %v", id, err)
	}
	return resp.Header.Revision
}

// Leases returns the ids of all leases.
func (s *Served) Leases() []int64 {
	s.T.Helper()
	resp, err := s.Lease.LeaseLeases(s.Bound(), &pb.LeaseLeasesRequest{})
	if err != nil {
		s.T.Fatal(err)
	}
	ids := make([]int64, len(resp.Leases))
	for i, l := range resp.Leases {
		ids[i] = l.ID
	}
	return ids
}

// TimeToLive returns what is left of a lease, with its keys.
func (s *Served) TimeToLive(id int64) *pb.LeaseTimeToLiveResponse {
	s.T.Helper()
	resp, err := s.Lease.LeaseTimeToLive(s.Bound(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	if err != nil {
		s.T.Fatal(err)
	}
	return resp
}

// OpPut is a put inside a transaction.
func OpPut(key, value string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}}
}

// OpDelete is a delete inside a transaction.
func OpDelete(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)},
	}}
}

// WantStatus compares an error's code and text with etcd's.
func WantStatus(tb testing.TB, what string, err, want error) {
	tb.Helper()
	got := status.Convert(err)
	if w := status.Convert(want); got.Code() != w.Code() || got.Message() != w.Message() {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}
