package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// longWait bounds every single wait of a case. It is much longer than what is
// waited for ever takes, so that a loaded machine fails no test.
const longWait = 60 * time.Second

// promptly is the time in which what should happen at once must have happened.
const promptly = 3 * time.Second

// served is a server process with clients of its services. Its methods fail the
// test where a call fails.
type served struct {
	*process
	c *clientv3.Client
	// conn is a connection without clientv3's retries.
	conn  *grpc.ClientConn
	kv    pb.KVClient
	watch pb.WatchClient
	lease pb.LeaseClient
	maint pb.MaintenanceClient
}

// serve starts a server on an empty directory.
func serve(tb testing.TB, args ...string) *served {
	tb.Helper()
	s := &served{process: newProcess(tb, args...)}
	s.c = s.client()
	s.conn = s.connect()
	s.kv, s.watch = pb.NewKVClient(s.conn), pb.NewWatchClient(s.conn)
	s.lease, s.maint = pb.NewLeaseClient(s.conn), pb.NewMaintenanceClient(s.conn)
	tb.Cleanup(func() { s.c.Close() })
	return s
}

// connect opens a connection of its own, which the test's end closes.
func (s *served) connect(opts ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(fastReconnect),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
	}, opts...)
	conn, err := grpc.NewClient(s.addr, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// wipe removes the data of a server that doesn't run.
func (s *served) wipe() {
	s.t.Helper()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

// bound returns a context for one step of a test.
func (s *served) bound() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), longWait)
	s.t.Cleanup(cancel)
	return ctx
}

// put writes a key and returns the revision.
func (s *served) put(key, value string) int64 {
	s.t.Helper()
	return s.putRequest(&pb.PutRequest{Key: []byte(key), Value: []byte(value)})
}

func (s *served) putRequest(r *pb.PutRequest) int64 {
	s.t.Helper()
	resp, err := s.kv.Put(s.bound(), r)
	if err != nil {
		s.t.Fatalf("put %q: %v", r.Key, err)
	}
	return resp.Header.Revision
}

// get reads one key; nil says that it is missing.
func (s *served) get(key string) []byte {
	s.t.Helper()
	resp := s.read(&pb.RangeRequest{Key: []byte(key)})
	if len(resp.Kvs) == 0 {
		return nil
	}
	return append([]byte{}, resp.Kvs[0].Value...)
}

func (s *served) read(r *pb.RangeRequest) *pb.RangeResponse {
	s.t.Helper()
	resp, err := s.kv.Range(s.bound(), r)
	if err != nil {
		s.t.Fatalf("range %q: %v", r.Key, err)
	}
	return resp
}

// count counts the keys of a prefix.
func (s *served) count(prefix string) int64 {
	s.t.Helper()
	return s.read(underPrefix(prefix, &pb.RangeRequest{CountOnly: true})).Count
}

// underPrefix fills in the key and range end of a prefix.
func underPrefix(prefix string, r *pb.RangeRequest) *pb.RangeRequest {
	r.Key, r.RangeEnd = []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
	return r
}

// del deletes one key and returns the revision.
func (s *served) del(key string) int64 {
	s.t.Helper()
	resp, err := s.kv.DeleteRange(s.bound(), &pb.DeleteRangeRequest{Key: []byte(key)})
	if err != nil {
		s.t.Fatalf("delete %q: %v", key, err)
	}
	return resp.Header.Revision
}

// delPrefix deletes all keys of a prefix.
func (s *served) delPrefix(prefix string) {
	s.t.Helper()
	r := underPrefix(prefix, &pb.RangeRequest{})
	if _, err := s.kv.DeleteRange(s.bound(), &pb.DeleteRangeRequest{Key: r.Key, RangeEnd: r.RangeEnd}); err != nil {
		s.t.Fatalf("delete %q: %v", prefix, err)
	}
}

func (s *served) txn(r *pb.TxnRequest) *pb.TxnResponse {
	s.t.Helper()
	resp, err := s.kv.Txn(s.bound(), r)
	if err != nil {
		s.t.Fatalf("txn: %v", err)
	}
	return resp
}

func (s *served) compact(rev int64) {
	s.t.Helper()
	if _, err := s.kv.Compact(s.bound(), &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
		s.t.Fatalf("compact %d: %v", rev, err)
	}
}

// rev returns the store's revision.
func (s *served) rev() int64 {
	s.t.Helper()
	return s.read(&pb.RangeRequest{Key: []byte("ready")}).Header.Revision
}

// grant grants a lease; id 0 lets the server pick one.
func (s *served) grant(id, ttl int64) int64 {
	s.t.Helper()
	resp, err := s.lease.LeaseGrant(s.bound(), &pb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err != nil {
		s.t.Fatalf("grant %d: %v", id, err)
	}
	return resp.ID
}

func (s *served) revoke(id int64) int64 {
	s.t.Helper()
	resp, err := s.lease.LeaseRevoke(s.bound(), &pb.LeaseRevokeRequest{ID: id})
	if err != nil {
		s.t.Fatalf("revoke %d: %v", id, err)
	}
	return resp.Header.Revision
}

// leases returns the ids of all leases.
func (s *served) leases() []int64 {
	s.t.Helper()
	resp, err := s.lease.LeaseLeases(s.bound(), &pb.LeaseLeasesRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	ids := make([]int64, len(resp.Leases))
	for i, l := range resp.Leases {
		ids[i] = l.ID
	}
	return ids
}

func (s *served) timeToLive(id int64) *pb.LeaseTimeToLiveResponse {
	s.t.Helper()
	resp, err := s.lease.LeaseTimeToLive(s.bound(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// opPut is a put inside a transaction.
func opPut(key, value string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}}
}

// opDelete is a delete inside a transaction.
func opDelete(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)},
	}}
}

// wantStatus compares an error's code and text with etcd's.
func wantStatus(tb testing.TB, what string, err, want error) {
	tb.Helper()
	got := status.Convert(err)
	if w := status.Convert(want); got.Code() != w.Code() || got.Message() != w.Message() {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}

// inTime fails the test unless fn returns in time.
func inTime(tb testing.TB, what string, limit time.Duration, fn func()) {
	tb.Helper()
	begin := time.Now()
	fn()
	if took := time.Since(begin); took > limit {
		tb.Errorf("%s took %v, more than %v", what, took, limit)
	}
}

// tape is one raw watch stream, read answer by answer.
type tape struct {
	t      testing.TB
	stream pb.Watch_WatchClient
	// stop ends the stream as a client does that goes away.
	stop context.CancelFunc
}

func (s *served) openWatch() *tape {
	s.t.Helper()
	return openWatch(s.t, s.watch)
}

func openWatch(tb testing.TB, c pb.WatchClient) *tape {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*longWait)
	tb.Cleanup(cancel)
	stream, err := c.Watch(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return &tape{t: tb, stream: stream, stop: cancel}
}

func (w *tape) create(r *pb.WatchCreateRequest) {
	w.t.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

// progress asks how far the stream is.
func (w *tape) progress() {
	w.t.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w *tape) send(r *pb.WatchRequest) {
	w.t.Helper()
	if err := w.stream.Send(r); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the next answer.
func (w *tape) next() *pb.WatchResponse {
	w.t.Helper()
	r, err := w.stream.Recv()
	if err != nil {
		w.t.Fatalf("watch: %v", err)
	}
	return r
}

// created reads the answer to a create request, which must be the next one, and
// returns the watch's id.
func (w *tape) created() int64 {
	w.t.Helper()
	r := w.next()
	if !r.Created || r.Canceled {
		w.t.Fatalf("not created: %v", r)
	}
	return r.WatchId
}
