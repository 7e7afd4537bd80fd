package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/mvcc"
)

const (
	// noWatch is the id of answers that concern no single watch: refused creates
	// and requested progress.
	noWatch = -1
	// pickID is the id in a create request that leaves the choice to the server.
	pickID = 0
)

// watchService is etcd's Watch service over Watches.
type watchService struct {
	pb.UnsafeWatchServer

	watches Watches
	headers headers
	streams *streams
	metrics *watchMetrics
	gate    *gate
	// maxBytes is the size from which the events of a watch that asked for it are
	// sent in fragments.
	maxBytes int
	// interval is the time between the progress notices of an idle watch.
	interval time.Duration
}

var _ pb.WatchServer = (*watchService)(nil)

// Watch serves one client stream with any number of watches.
func (s *watchService) Watch(stream pb.Watch_WatchServer) error {
	w := &watchStream{
		service: s,
		stream:  stream,
		group:   s.watches.NewWatchGroup(),
		watches: make(map[int64]*watch),
	}
	defer w.group.Close()
	s.metrics.streams.Inc()
	defer func() {
		s.metrics.streams.Dec()
		s.metrics.watchers.Sub(float64(len(w.watches)))
	}()
	w.in = receive(s.streams, stream.Recv)
	defer w.in.close()
	defer w.stopTicker()
	ctx, cancel := context.WithCancel(stream.Context())
	defer w.judging.Wait()
	defer cancel()
	err := w.run(ctx)
	if errors.Is(err, context.Canceled) {
		return errWatchCanceled
	}
	return err
}

// watch is what the stream remembers of one watch.
type watch struct {
	fragment bool
	// notify is set when the client wants to hear of progress while it is idle.
	notify bool
	// spoke is set when events were sent since the last tick.
	spoke bool
	// due is set while the client is owed a notice of progress.
	due bool
	// ended is set when history lost to compaction ended the watch. Its id stays
	// taken, and the stream without progress, until the client cancels it.
	ended bool
}

// watchStream is one client stream. Only its handler's goroutine uses it.
type watchStream struct {
	service *watchService
	stream  pb.Watch_WatchServer
	group   WatchGroup
	in      *inbox[pb.WatchRequest]

	// judged brings the verdict on the create request that waits for one, nil while none
	// does; judging is the goroutine that finds it. The client's next requests wait, the
	// events of its watches don't.
	judged  chan verdict
	judging sync.WaitGroup

	watches map[int64]*watch
	// nextID is the lowest id that was never picked.
	nextID int64
	// progressAsked counts the progress requests that wait until everything that
	// is there has been sent.
	progressAsked int
	// ticker runs from the first watch with progress notices on.
	ticker *time.Ticker
	// tickDue is set by a tick, until the notices have been sent.
	tickDue bool
	// due is set while a watch is owed a notice of progress.
	due bool
}

// run sends what the watches have, and between two batches takes at most one
// request, so that neither side starves the other. It returns when the stream's
// context or the stream itself ends.
func (w *watchStream) run(ctx context.Context) error {
	for {
		more, err := w.sendBatch()
		if err != nil {
			return err
		}
		if !more {
			more, err = w.sendProgress()
			if err != nil {
				return err
			}
		}
		if err := w.await(ctx, !more); err != nil {
			return err
		}
	}
}

// await takes one thing that has happened, if block is set after waiting for it.
func (w *watchStream) await(ctx context.Context, block bool) error {
	var tick <-chan time.Time
	if w.ticker != nil {
		tick = w.ticker.C
	}
	requests := w.in.requests
	if w.judged != nil {
		requests = nil
	}
	if !block {
		select {
		case r := <-requests:
			return w.serve(ctx, r)
		case v := <-w.judged:
			return w.decide(v)
		case err := <-w.in.ended:
			return endOfInput(err)
		case <-tick:
			w.tickDue = true
		case <-ctx.Done():
			return endOf(ctx)
		default:
		}
		return nil
	}
	select {
	case r := <-requests:
		return w.serve(ctx, r)
	case v := <-w.judged:
		return w.decide(v)
	case err := <-w.in.ended:
		return endOfInput(err)
	case <-tick:
		w.tickDue = true
	case <-w.group.Ready():
	case <-ctx.Done():
		return endOf(ctx)
	}
	return nil
}

// endOfInput says whether the end of the client's side ends the stream. A client
// that only says that it has nothing more to ask goes on to hear of events.
func endOfInput(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return toStatus(err)
}

// serve handles one request.
func (w *watchStream) serve(ctx context.Context, r *pb.WatchRequest) error {
	switch u := r.GetRequestUnion().(type) {
	case *pb.WatchRequest_CreateRequest:
		return w.judge(ctx, u.CreateRequest)
	case *pb.WatchRequest_CancelRequest:
		return w.cancel(u.CancelRequest.GetWatchId())
	case *pb.WatchRequest_ProgressRequest:
		// A stream without a watch has no progress to tell of.
		if len(w.watches) > 0 {
			w.progressAsked++
		}
	}
	return nil
}

// create starts a watch, which the caller may, and answers. Its first events come after the
// answer, since nothing polls in between.
func (w *watchStream) create(r *pb.WatchCreateRequest) error {
	key, end := watched(r)
	id, reason := w.admit(r, key, end)
	if reason != "" {
		return w.refuse(reason)
	}
	o := mvcc.WatchOptions{Key: key, End: end, Start: r.GetStartRevision(), PrevKV: r.GetPrevKv()}
	for _, f := range r.GetFilters() {
		switch f {
		case pb.WatchCreateRequest_NOPUT:
			o.NoPut = true
		case pb.WatchCreateRequest_NODELETE:
			o.NoDelete = true
		}
	}
	rev := w.group.Add(id, o)
	w.service.metrics.watchers.Inc()
	w.watches[id] = &watch{fragment: r.GetFragment(), notify: r.GetProgressNotify()}
	if r.GetProgressNotify() {
		w.startTicker()
	}
	return w.stream.Send(&pb.WatchResponse{Header: w.service.headers.of(rev), WatchId: id, Created: true})
}

// admit returns the id that a watch gets, or the reason for which it is refused.
func (w *watchStream) admit(r *pb.WatchCreateRequest, key, end []byte) (id int64, reason string) {
	fromKey := len(end) == 1 && end[0] == 0
	if len(end) != 0 && !fromKey && bytes.Compare(key, end) >= 0 {
		return noWatch, reasonEmptyRange
	}
	id = r.GetWatchId()
	if id == pickID {
		for w.watches[w.nextID] != nil {
			w.nextID++
		}
		id = w.nextID
		w.nextID++
		return id, ""
	}
	if w.watches[id] != nil {
		return noWatch, reasonDuplicateID
	}
	return id, ""
}

// cancel ends a watch and answers. An unknown id is passed over in silence.
func (w *watchStream) cancel(id int64) error {
	if w.watches[id] == nil {
		return nil
	}
	w.group.Remove(id)
	delete(w.watches, id)
	w.service.metrics.watchers.Dec()
	return w.stream.Send(&pb.WatchResponse{Header: w.service.headers.current(), WatchId: id, Canceled: true})
}

// sendBatch sends the next batch of events of any watch; it reports whether there
// was one.
func (w *watchStream) sendBatch() (bool, error) {
	b, ok, err := w.group.Poll()
	if err != nil {
		return false, toStatus(err)
	}
	if !ok {
		return false, nil
	}
	state := w.watches[b.ID]
	if state == nil {
		invariant.Violated("batch of watch %d, which the stream does not have", b.ID)
	}
	resp := &pb.WatchResponse{
		Header:          w.service.headers.of(b.Rev),
		WatchId:         b.ID,
		Events:          b.Events,
		CompactRevision: b.CompactRev,
		Canceled:        b.CompactRev != 0,
	}
	if b.CompactRev != 0 {
		// The client reads of such an end that history is gone, not how far the
		// watch came: the header has no revision.
		resp.Header.Revision = 0
		state.ended = true
	}
	if len(b.Events) > 0 {
		state.spoke = true
		w.service.metrics.events.Add(float64(len(b.Events)))
	}
	if state.fragment {
		return true, sendFragments(resp, w.service.maxBytes, w.stream.Send)
	}
	return true, w.stream.Send(resp)
}

// sendProgress answers what waits for progress once all events have been sent. It
// reports whether more events came in the way of an answer; then it wants to be
// called again after those. An answer that a lagging watch or one with a future
// start makes impossible is dropped: clients ask again.
func (w *watchStream) sendProgress() (more bool, err error) {
	if w.progressAsked > 0 {
		rev, ok, later := w.group.Progress()
		if !ok {
			if more, err := w.sendBatch(); more || err != nil || later {
				return more, err
			}
			// What a watch had to read may have been no event: a hold of another key has just gone.
			if rev, ok, later = w.group.Progress(); later {
				return false, nil
			}
		}
		for ; ok && w.progressAsked > 0; w.progressAsked-- {
			if err := w.stream.Send(w.progressAt(rev, noWatch)); err != nil {
				return false, err
			}
		}
		w.progressAsked = 0
	}
	if w.tickDue {
		w.tickDue = false
		for _, state := range w.watches {
			state.due = state.notify && !state.ended && !state.spoke
			state.spoke = false
		}
		w.due = true
	}
	if w.due {
		return false, w.notify()
	}
	return false, nil
}

// notify tells the idle watches that asked for it how far they are, as far as that is
// known yet.
func (w *watchStream) notify() error {
	w.due = false
	for id, state := range w.watches {
		if !state.due {
			continue
		}
		rev, ok, later := w.group.ProgressOf(id)
		state.due = later && !state.ended && !state.spoke
		w.due = w.due || state.due
		if !ok {
			continue
		}
		if err := w.stream.Send(w.progressAt(rev, id)); err != nil {
			return err
		}
	}
	return nil
}

func (w *watchStream) progressAt(rev, id int64) *pb.WatchResponse {
	return &pb.WatchResponse{Header: w.service.headers.of(rev), WatchId: id}
}

// startTicker starts the ticks for progress notices. Each stream's have a length
// of their own, so that clients that connected together are not served together
// for ever.
func (w *watchStream) startTicker() {
	if w.ticker != nil {
		return
	}
	interval := w.service.interval
	w.ticker = time.NewTicker(interval + rand.N(interval/10))
}

func (w *watchStream) stopTicker() {
	if w.ticker != nil {
		w.ticker.Stop()
	}
}
