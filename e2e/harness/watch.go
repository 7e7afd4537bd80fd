package harness

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// WatchStream is one raw watch stream, read answer by answer.
type WatchStream struct {
	T      testing.TB
	Stream pb.Watch_WatchClient
	// Stop ends the stream as a client does that goes away.
	Stop context.CancelFunc
}

// OpenWatch opens a stream on the connection without retries; the test's end stops it.
func (s *Served) OpenWatch() *WatchStream {
	s.T.Helper()
	return OpenWatch(s.T, s.Watch)
}

// OpenWatch opens a stream of a client; the test's end stops it.
func OpenWatch(tb testing.TB, c pb.WatchClient) *WatchStream {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*LongWait)
	tb.Cleanup(cancel)
	stream, err := c.Watch(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return &WatchStream{T: tb, Stream: stream, Stop: cancel}
}

// Create asks for a watch.
func (w *WatchStream) Create(r *pb.WatchCreateRequest) {
	w.T.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

// Progress asks how far the stream is.
func (w *WatchStream) Progress() {
	w.T.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w *WatchStream) send(r *pb.WatchRequest) {
	w.T.Helper()
	if err := w.Stream.Send(r); err != nil {
		w.T.Fatal(err)
	}
}

// Next returns the next answer.
func (w *WatchStream) Next() *pb.WatchResponse {
	w.T.Helper()
	r, err := w.Stream.Recv()
	if err != nil {
		w.T.Fatalf("watch: %v", err)
	}
	return r
}

// Created reads the answer to a create request, which must be the next one, and
// returns the watch's id.
func (w *WatchStream) Created() int64 {
	w.T.Helper()
	r := w.Next()
	if !r.Created || r.Canceled {
		w.T.Fatalf("not created: %v", r)
	}
	return r.WatchId
}
