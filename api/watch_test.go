package api

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// watcher is the client's end of a watch stream.
type watcher struct {
	*testing.T

	stream pb.Watch_WatchClient
}

func openWatch(t *testing.T, r *running) *watcher {
	t.Helper()
	stream, err := r.watch.Watch(t.Context())
	check(t, err)
	return &watcher{t, stream}
}

func (w *watcher) request(u any) {
	w.Helper()
	r := &pb.WatchRequest{}
	switch u := u.(type) {
	case *pb.WatchCreateRequest:
		r.RequestUnion = &pb.WatchRequest_CreateRequest{CreateRequest: u}
	case *pb.WatchCancelRequest:
		r.RequestUnion = &pb.WatchRequest_CancelRequest{CancelRequest: u}
	case *pb.WatchProgressRequest:
		r.RequestUnion = &pb.WatchRequest_ProgressRequest{ProgressRequest: u}
	}
	check(w.T, w.stream.Send(r))
}

func (w *watcher) recv() *pb.WatchResponse {
	w.Helper()
	resp, err := w.stream.Recv()
	check(w.T, err)
	return resp
}

func (w *watcher) want(want *pb.WatchResponse) {
	w.Helper()
	diff(w.T, want, w.recv())
}

// create starts a watch and takes the answer, which must carry revision rev.
func (w *watcher) create(r *pb.WatchCreateRequest, id, rev int64) {
	w.Helper()
	w.request(r)
	w.want(&pb.WatchResponse{Header: header(rev), WatchId: id, Created: true})
}

// settled proves that nothing else is on its way: the next answer is that to a
// cancel of the watch given.
func (w *watcher) settled(id, rev int64) {
	w.Helper()
	w.request(&pb.WatchCancelRequest{WatchId: id})
	w.want(&pb.WatchResponse{Header: header(rev), WatchId: id, Canceled: true})
}

func putEvent(key, value string, create, mod, version int64) *mvccpb.Event {
	return &mvccpb.Event{Kv: &mvccpb.KeyValue{
		Key: []byte(key), Value: []byte(value), CreateRevision: create, ModRevision: mod, Version: version,
	}}
}

func events(id, rev int64, evs ...*mvccpb.Event) *pb.WatchResponse {
	return &pb.WatchResponse{Header: header(rev), WatchId: id, Events: evs}
}

func TestWatchLive(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("c"), PrevKv: true}, 0, 1)
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}}, 1, 1)
	w.create(&pb.WatchCreateRequest{}, 2, 1)

	r.put(t, "a", "1")
	w.want(events(0, 2, putEvent("a", "1", 2, 2, 1)))
	r.put(t, "a", "2")
	second := putEvent("a", "2", 2, 3, 2)
	second.PrevKv = putEvent("a", "1", 2, 2, 1).GetKv()
	w.want(events(0, 3, second))
	r.put(t, "z", "1")
	r.put(t, "b", "1")
	w.want(events(0, 5, putEvent("b", "1", 5, 5, 1)))
	_, err := r.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("z")})
	check(t, err)

	// Watches take turns in any order; each says the same of the deletion.
	got := map[int64]*pb.WatchResponse{}
	for range 2 {
		resp := w.recv()
		got[resp.GetWatchId()] = resp
	}
	gone := func(key string, prev *mvccpb.KeyValue) *mvccpb.Event {
		return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: 6}, PrevKv: prev}
	}
	diff(t, map[int64]*pb.WatchResponse{
		0: events(0, 6, gone("a", second.GetKv()), gone("b", putEvent("b", "1", 5, 5, 1).GetKv())),
		1: events(1, 6, gone("b", nil)),
	}, got)
	w.settled(2, 6)
	w.settled(1, 6)
	w.settled(0, 6)
}

// TestWatchIDs checks how ids are picked and refused.
func TestWatchIDs(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	key := []byte("k")
	w.create(&pb.WatchCreateRequest{Key: key, WatchId: 1}, 1, 1)
	w.create(&pb.WatchCreateRequest{Key: key}, 0, 1)
	w.create(&pb.WatchCreateRequest{Key: key}, 2, 1)
	w.create(&pb.WatchCreateRequest{Key: key, WatchId: -7}, -7, 1)
	refused := func(reason string) *pb.WatchResponse {
		return &pb.WatchResponse{Header: header(1), WatchId: -1, Created: true, Canceled: true, CancelReason: reason}
	}
	for _, tc := range []struct {
		r      *pb.WatchCreateRequest
		reason string
	}{
		{&pb.WatchCreateRequest{Key: key, WatchId: 2}, "mvcc: duplicate watch ID provided on the WatchStream"},
		{&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("b")}, "mvcc: watcher range is empty"},
		{&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a"), WatchId: 2}, "mvcc: watcher range is empty"},
		{
			&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a"), StartRevision: -1},
			"etcdserver: mvcc: required revision has been compacted",
		},
	} {
		w.request(tc.r)
		w.want(refused(tc.reason))
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte{0}}, 3, 1)
	w.request(&pb.WatchCancelRequest{WatchId: 55})
	w.settled(2, 1)
	w.create(&pb.WatchCreateRequest{Key: key, WatchId: 2}, 2, 1)
	w.create(&pb.WatchCreateRequest{Key: key}, 4, 1)
}

// TestWatchHistory checks a watch from the past, from the compaction revision and
// from before it.
func TestWatchHistory(t *testing.T) {
	r := start(t, nil)
	for i := range 4 {
		r.put(t, "k", fmt.Sprint(i))
	}
	_, err := r.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 3})
	check(t, err)

	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 3}, 0, 5)
	w.want(events(0, 5, putEvent("k", "1", 2, 3, 2), putEvent("k", "2", 2, 4, 3), putEvent("k", "3", 2, 5, 4)))

	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 2}, 1, 5)
	w.want(&pb.WatchResponse{Header: header(0), WatchId: 1, Canceled: true, CompactRevision: 3})
	// The id stays taken until the client cancels the watch.
	w.request(&pb.WatchCreateRequest{Key: []byte("k"), WatchId: 1})
	w.want(&pb.WatchResponse{
		Header: header(5), WatchId: -1, Created: true, Canceled: true,
		CancelReason: "mvcc: duplicate watch ID provided on the WatchStream",
	})
	w.settled(1, 5)
	r.put(t, "k", "4")
	w.want(events(0, 6, putEvent("k", "4", 2, 6, 5)))
}

func TestWatchProgress(t *testing.T) {
	r := start(t, nil)
	ask := &pb.WatchProgressRequest{}
	w := openWatch(t, r)
	w.request(ask) // without a watch: no answer
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	w.request(ask)
	w.want(&pb.WatchResponse{Header: header(1), WatchId: -1})
	r.put(t, "other", "1")
	w.request(ask)
	w.request(ask)
	w.want(&pb.WatchResponse{Header: header(2), WatchId: -1})
	w.want(&pb.WatchResponse{Header: header(2), WatchId: -1})

	// A watch from the future makes progress impossible until it is reached.
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 4}, 1, 2)
	w.request(ask)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 2, 2)
	r.put(t, "other", "2")
	r.put(t, "other", "3")
	w.request(ask)
	w.want(&pb.WatchResponse{Header: header(4), WatchId: -1})
}

// TestWatchProgressOrder checks that a progress answer comes after every event up
// to its revision, and no event up to it comes later.
func TestWatchProgressOrder(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l")}, 0, 1)
	const writes = 300
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		for range writes {
			if _, err := r.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k")}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen, told, answers := int64(1), int64(0), 0
	for told < writes+1 {
		w.request(&pb.WatchProgressRequest{})
		resp := w.recv()
		for _, e := range resp.GetEvents() {
			if rev := e.GetKv().GetModRevision(); rev != seen+1 || rev <= told {
				t.Fatalf("event of revision %d after %d, with progress told up to %d", rev, seen, told)
			}
			seen++
		}
		if resp.GetWatchId() == -1 {
			answers++
			if told = resp.GetHeader().GetRevision(); told != seen {
				t.Fatalf("progress up to %d told, events up to %d sent", told, seen)
			}
		}
	}
	if answers == 0 {
		t.Error("no progress was told")
	}
}

// TestWatchProgressNotify checks the notices of a watch beside some that ask for
// none, of which one starts in a future that never comes.
func TestWatchProgressNotify(t *testing.T) {
	r := start(t, func(c *Config) { c.ProgressInterval = time.Millisecond })
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: math.MaxInt64 - 2}, 0, 1)
	began := time.Now()
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), ProgressNotify: true}, 1, 1)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 9, ProgressNotify: true}, 2, 1)
	for range 2 {
		w.want(&pb.WatchResponse{Header: header(1), WatchId: 1})
	}
	if d := time.Since(began); d < 2*minProgressInterval {
		t.Errorf("two notices within %v", d)
	}
}

// TestWatchFragments checks the pieces of one large answer, between the answers of
// another watch.
func TestWatchFragments(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRequestBytes = 16 << 10 })
	limit := 16<<10 + messageOverhead
	const n = 100
	value := make([]byte, 15<<10)
	for i := range n {
		_, err := r.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "k%03d", i), Value: value})
		check(t, err)
	}
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: 2, Fragment: true}, 0, n+1)
	next, pieces := 0, 0
	for next < n {
		resp := w.recv()
		pieces++
		if proto.Size(resp) >= limit {
			t.Errorf("a piece has %d bytes", proto.Size(resp))
		}
		diff(t, header(n+1), resp.GetHeader())
		for _, e := range resp.GetEvents() {
			if want := fmt.Sprintf("k%03d", next); string(e.GetKv().GetKey()) != want {
				t.Fatalf("got %s, want %s", e.GetKv().GetKey(), want)
			}
			next++
		}
	}
	if pieces < 3 {
		t.Errorf("all came in %d pieces", pieces)
	}
}

// TestWatchSlowClient checks that a client that does not read misses nothing.
func TestWatchSlowClient(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	const n = 400
	value := string(make([]byte, 10<<10))
	for range n {
		r.put(t, "k", value)
	}
	for rev := int64(2); rev < n+2; {
		for _, e := range w.recv().GetEvents() {
			if e.GetKv().GetModRevision() != rev {
				t.Fatalf("got revision %d, want %d", e.GetKv().GetModRevision(), rev)
			}
			rev++
		}
	}
	w.settled(0, n+1)
}

// TestWatchUnknownRequest checks that an empty request is passed over.
func TestWatchUnknownRequest(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	check(t, w.stream.Send(&pb.WatchRequest{}))
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
}

// TestWatchHalfClosed checks that a client that has nothing more to ask still hears
// of events.
func TestWatchHalfClosed(t *testing.T) {
	r := start(t, nil)
	w := openWatch(t, r)
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	check(t, w.stream.CloseSend())
	for rev := int64(2); rev < 5; rev++ {
		r.put(t, "k", "v")
		w.want(events(0, rev, putEvent("k", "v", 2, rev, rev-1)))
	}
}

// TestWatchCanceled checks how the handler ends when the client goes away.
func TestWatchCanceled(t *testing.T) {
	r := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.watch.Watch(ctx)
	check(t, err)
	w := &watcher{t, stream}
	w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	cancel()
	_, err = stream.Recv()
	wantStatus(t, err, codes.Canceled, "context canceled")
}
