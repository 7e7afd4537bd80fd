package api

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// verdict says whether the caller may have a watch.
type verdict struct {
	request *pb.WatchCreateRequest
	// reason is why not, in etcd's form; empty if it may.
	reason string
	// err ends the stream: it can't be known. The client asks elsewhere.
	err error
}

// watched returns the range of a watch as the store knows it.
func watched(r *pb.WatchCreateRequest) (key, end []byte) {
	key, end = r.GetKey(), r.GetRangeEnd()
	if len(key) == 0 {
		key = []byte{0}
	}
	return key, end
}

// judge finds out whether the caller may have a watch. Where requests are checked that takes
// a leader, and the client's watches go on meanwhile; without one the stream ends when a
// call's time is over.
func (w *watchStream) judge(ctx context.Context, r *pb.WatchCreateRequest) error {
	if r.GetStartRevision() < 0 {
		return w.refuse(reasonCompacted)
	}
	if w.service.gate.atOnce(ctx) {
		return w.create(r)
	}
	judged := make(chan verdict, 1)
	w.judged = judged
	w.judging.Go(func() {
		key, end := watched(r)
		v := verdict{request: r}
		v.reason, v.err = w.service.gate.refuseWatch(ctx, key, end)
		judged <- v
	})
	return nil
}

// decide does what the verdict on a watch says.
func (w *watchStream) decide(v verdict) error {
	w.judged = nil
	switch {
	case v.err != nil:
		return v.err
	case v.reason != "":
		return w.refuse(v.reason)
	default:
		return w.create(v.request)
	}
}

// refuse answers that there will be no watch.
func (w *watchStream) refuse(reason string) error {
	return w.stream.Send(&pb.WatchResponse{
		Header:       w.service.headers.current(),
		WatchId:      noWatch,
		Created:      true,
		Canceled:     true,
		CancelReason: reason,
	})
}
