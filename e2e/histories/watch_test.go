package histories

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

func rangeAll() *pb.RangeRequest { return &pb.RangeRequest{} }

// observer is one watch that goes on over broken streams, and what it saw. Only its
// stream's reader uses it while the stream runs.
type observer struct {
	request *pb.WatchCreateRequest
	// next is the revision from which it goes on.
	next int64
	// open says that the server has answered the request of the present stream.
	open bool
	// ended says that a compaction ended the watch, and that it was canceled.
	ended bool
	// part is the first revision of an answer of which the last part has not come;
	// 0 if there is none.
	part int64
	seen []sighting
}

// sighting is one thing that an observer was told.
type sighting struct {
	// begin is set where a watch began, from this revision on.
	begin  int64
	events []*mvccpb.Event
	// more says that the last events' revision may go on in the next answer.
	more bool
	// rev is the header's revision.
	rev int64
	// compacted is set where the watch ended for a compaction.
	compacted int64
}

// wants reports whether the observer must see an event.
func (o *observer) wants(e *mvccpb.Event) bool {
	for _, f := range o.request.Filters {
		if f == pb.WatchCreateRequest_NOPUT && e.Type == mvccpb.Event_PUT || f == pb.WatchCreateRequest_NODELETE && e.Type == mvccpb.Event_DELETE {
			return false
		}
	}
	key, end := o.request.Key, o.request.RangeEnd
	switch {
	case len(end) == 0:
		return bytes.Equal(e.Kv.Key, key)
	case bytes.Equal(end, []byte{0}):
		return bytes.Compare(e.Kv.Key, key) >= 0
	}
	return bytes.Compare(e.Kv.Key, key) >= 0 && bytes.Compare(e.Kv.Key, end) < 0
}

// observation is a stream with a few observers on it, which is opened again
// whenever it breaks.
type observation struct {
	watch     pb.WatchClient
	observers []*observer
	// pause is how long the reader rests after an answer, at most.
	pause time.Duration
	rnd   *rand.Rand
	// asking protects the stream against two senders.
	asking sync.Mutex
	// streams counts the streams that were opened.
	streams int
	// first is how far the first observer has come.
	first atomic.Int64
}

// run observes until all have heard of everything up to a revision, which is 0
// until it is known.
func (o *observation) run(ctx context.Context, end *atomic.Int64) error {
	for ctx.Err() == nil {
		done, err := o.stream(ctx, end)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("stopped at revision %d: %w", o.observers[0].next, ctx.Err())
}

// stream reads one stream until it breaks or nothing more is to come.
func (o *observation) stream(ctx context.Context, end *atomic.Int64) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := o.watch.Watch(ctx)
	if err != nil {
		return false, nil // the server is away
	}
	o.streams++
	for i := range o.observers {
		o.observers[i].open, o.observers[i].ended = false, false
		if o.ask(stream, i) != nil {
			return false, nil
		}
	}
	var asker sync.WaitGroup
	defer asker.Wait()
	defer cancel()
	asker.Go(func() { o.askForProgress(ctx, stream) })
	for {
		r, err := stream.Recv()
		if err != nil {
			return false, nil
		}
		if err := o.answer(stream, r); err != nil {
			return false, err
		}
		o.first.Store(o.observers[0].next)
		if last := end.Load(); last != 0 && o.passed(last) {
			return true, nil
		}
		if o.pause > 0 {
			rest := time.NewTimer(time.Duration(o.rnd.Int64N(int64(o.pause))))
			<-rest.C
		}
	}
}

func (o *observation) passed(rev int64) bool {
	for _, w := range o.observers {
		if w.next <= rev {
			return false
		}
	}
	return true
}

// ask starts the i-th watch where its observer is.
func (o *observation) ask(stream pb.Watch_WatchClient, i int) error {
	r := &pb.WatchCreateRequest{
		Key: o.observers[i].request.Key, RangeEnd: o.observers[i].request.RangeEnd, Filters: o.observers[i].request.Filters,
		PrevKv: o.observers[i].request.PrevKv, Fragment: o.observers[i].request.Fragment,
		ProgressNotify: o.observers[i].request.ProgressNotify,
		WatchId:        int64(i + 1), StartRevision: o.observers[i].next,
	}
	o.asking.Lock()
	defer o.asking.Unlock()
	return stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

// askForProgress asks the stream how far it is, over and over.
func (o *observation) askForProgress(ctx context.Context, stream pb.Watch_WatchClient) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		o.asking.Lock()
		err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		o.asking.Unlock()
		if err != nil {
			return
		}
	}
}

// answer notes what the server said.
func (o *observation) answer(stream pb.Watch_WatchClient, r *pb.WatchResponse) error {
	if r.WatchId == -1 {
		if r.Created || r.Canceled || len(r.Events) != 0 {
			return fmt.Errorf("an answer for no watch: %v", r)
		}
		for _, w := range o.observers {
			if w.open {
				w.progress(r.Header.Revision)
			}
		}
		return nil
	}
	i := int(r.WatchId - 1)
	if i < 0 || i >= len(o.observers) {
		return fmt.Errorf("an answer for a watch that was not asked for: %v", r)
	}
	w := o.observers[i]
	switch {
	case r.Created:
		if w.open || r.Canceled {
			return fmt.Errorf("watch %d: %v", i, r)
		}
		w.open, w.part = true, 0
		if w.next == 0 {
			w.next = r.Header.Revision + 1
		}
		w.seen = append(w.seen, sighting{begin: w.next})
	case r.Canceled && w.ended:
		w.ended = false
		_ = o.ask(stream, i) // a stream that broke is its reader's business
	case !w.open:
		return fmt.Errorf("watch %d: before the answer to its request: %v", i, r)
	case r.Canceled:
		if r.CompactRevision == 0 || len(r.Events) != 0 {
			return fmt.Errorf("watch %d: canceled: %v", i, r)
		}
		w.seen = append(w.seen, sighting{compacted: r.CompactRevision})
		w.next, w.open, w.ended = r.CompactRevision, false, true
		// The id is taken until it is canceled.
		o.asking.Lock()
		_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: r.WatchId}}})
		o.asking.Unlock()
	case len(r.Events) == 0:
		w.progress(r.Header.Revision)
	default:
		w.events(r)
	}
	return nil
}

// progress notes that nothing up to a revision is to come.
func (o *observer) progress(rev int64) {
	o.seen = append(o.seen, sighting{rev: rev})
	o.next = max(o.next, rev+1)
}

func (o *observer) events(r *pb.WatchResponse) {
	o.seen = append(o.seen, sighting{events: r.Events, rev: r.Header.Revision, more: r.Fragment})
	first, last := r.Events[0].Kv.ModRevision, r.Events[len(r.Events)-1].Kv.ModRevision
	if !r.Fragment {
		o.part, o.next = 0, last+1
		return
	}
	// What follows belongs to the last revision, perhaps, and begins anew if the
	// stream breaks before it came.
	if o.part == 0 {
		o.part = first
	}
	o.next = last
}

// observations are a watch of everything, which alone is read without rest and
// never overtaken by a compaction, and others of all kinds.
func observations(s *harness.Served, rnd *rand.Rand) []*observation {
	all := &observer{next: 1, request: &pb.WatchCreateRequest{Key: []byte("h/"), RangeEnd: []byte("h0"), PrevKv: true}}
	put, del := pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE
	kinds := []*pb.WatchCreateRequest{
		{Key: []byte("h/"), RangeEnd: []byte("h0")},
		{Key: []byte("h/"), RangeEnd: []byte("h0"), PrevKv: true, Fragment: true},
		{Key: []byte("h/1"), PrevKv: true},
		{Key: []byte("h/2"), RangeEnd: []byte("h/4"), Filters: []pb.WatchCreateRequest_FilterType{put}, PrevKv: true},
		{Key: []byte("h/0"), RangeEnd: []byte{0}, Filters: []pb.WatchCreateRequest_FilterType{del}},
		{Key: []byte("h/4"), RangeEnd: []byte("h/6"), ProgressNotify: true},
		{Key: []byte("h/none"), ProgressNotify: true},
		{Key: []byte("h/3"), Filters: []pb.WatchCreateRequest_FilterType{put, del}},
	}
	groups := []*observation{{observers: []*observer{all}}}
	for _, pause := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond} {
		for range 2 {
			g := &observation{pause: pause}
			for range 1 + rnd.IntN(3) {
				k := kinds[rnd.IntN(len(kinds))]
				g.observers = append(g.observers, &observer{request: k, next: int64(rnd.IntN(2))})
			}
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		g.watch = pb.NewWatchClient(s.Connect())
		g.rnd = rand.New(rand.NewPCG(rnd.Uint64(), 1))
	}
	return groups
}

// Watchers of a random history see what happened: in order, each event once, whole
// revisions, nothing left out, over broken streams, slow readers, compactions and
// kills of the server; progress is never announced before what is to come up to
// there.
func TestWatchHistories(t *testing.T) {
	t.Parallel()
	for _, shards := range historyShards {
		t.Run(strconv.Itoa(shards), func(t *testing.T) {
			for round := range harness.Sized(2, 50) {
				if !watchHistory(t, shards, round) {
					return
				}
			}
		})
	}
}

// watchHistory watches and checks one history and reports whether it is right.
func watchHistory(t *testing.T, shards, round int) bool {
	t.Helper()
	seed := harness.Seed(t, "./e2e/histories", round)
	rnd := rand.New(rand.NewPCG(seed, 2<<32))
	s := harness.Serve(t, historyFlags(shards, "--watch-progress-notify-interval=100ms")...)
	groups := observations(s, rnd)
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.LongWait)
	t.Cleanup(cancel)
	var end, compacted atomic.Int64
	var running sync.WaitGroup
	for i, g := range groups {
		running.Go(func() {
			if err := g.run(ctx, &end); err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	compacting, stop := context.WithCancel(ctx)
	running.Go(func() { compactBehind(compacting, s, groups[0], &compacted, rand.New(rand.NewPCG(seed, 3<<32))) })
	h := runHistory(t, s, seed, histSize{clients: 6, calls: 150, kills: 2, shards: shards})
	stop()
	end.Store(s.Revision())
	// A watch that was opened again behind the last revision waits for the next, and as in etcd
	// nothing is told of the progress of its stream before that has come.
	s.Put("end", "")
	running.Wait()
	if t.Failed() {
		return false
	}
	tr := logOf(t, groups[0].observers[0], end.Load(), &compacted, shards == 1)
	h.checkLog(tr)
	for i, g := range groups {
		for j, o := range g.observers {
			what := fmt.Sprintf("stream %d (opened %d times, pause %v) watch %d %v", i, g.streams, g.pause, j, o.request)
			if err := o.check(tr); err != nil {
				t.Errorf("%s: %v", what, err)
			} else {
				t.Logf("%s: %d answers", what, len(o.seen))
			}
		}
	}
	t.Logf("round %d: %d revisions up to %d, compacted up to %d", round, len(tr.log), tr.last, compacted.Load())
	return !t.Failed()
}

// compactBehind compacts the store now and then, never beyond what the first
// observer has seen.
func compactBehind(ctx context.Context, s *harness.Served, all *observation, compacted *atomic.Int64, rnd *rand.Rand) {
	for ctx.Err() == nil {
		wait := time.NewTimer(time.Duration(50+rnd.IntN(200)) * time.Millisecond)
		<-wait.C
		rev := all.first.Load() - 1 - rnd.Int64N(60)
		if rev <= compacted.Load() {
			continue
		}
		// Whether it happens may stay unknown.
		compacted.Store(rev)
		_, _ = s.KV.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: rnd.IntN(2) == 0})
	}
}

// logOf is what the observer of everything saw. Dense revisions leave no gaps.
func logOf(t *testing.T, o *observer, last int64, compacted *atomic.Int64, dense bool) *truth {
	t.Helper()
	tr := &truth{log: make(map[int64][]*mvccpb.Event), last: last, compacts: compacted}
	for _, s := range o.seen {
		if s.compacted != 0 {
			t.Fatalf("the observer of everything was overtaken by the compaction at %d", s.compacted)
		}
		for _, e := range s.events {
			tr.log[e.Kv.ModRevision] = append(tr.log[e.Kv.ModRevision], e)
		}
	}
	state := histState{rev: 1}
	for i, rev := range slices.Sorted(maps.Keys(tr.log)) {
		if dense && rev != int64(i+2) {
			t.Fatalf("revision %d was never seen", i+2)
		}
		state = state.replay(t, rev, tr.log[rev])
	}
	return tr
}

// replay holds the events of one revision against the state before it, and returns
// the state behind them.
func (s histState) replay(t *testing.T, rev int64, events []*mvccpb.Event) histState {
	t.Helper()
	for _, e := range events {
		key, err := strconv.Atoi(string(bytes.TrimPrefix(e.Kv.Key, []byte("h/"))))
		if err != nil {
			t.Fatal(err)
		}
		was, now := s.kv[key], histEntry{}
		if e.Type == mvccpb.Event_PUT {
			if _, now, err = histEntryOf(e.Kv); err != nil {
				t.Fatal(err)
			}
			want := histEntry{value: now.value, create: was.create, mod: rev, version: was.version + 1}
			if was.create == 0 {
				want.create = rev
			}
			if now != want {
				t.Fatalf("revision %d: %+v, want %+v", rev, now, want)
			}
		} else if was.create == 0 {
			t.Fatalf("revision %d deletes %s, which is not there", rev, e.Kv.Key)
		}
		switch {
		case e.PrevKv == nil && was.create != 0 || e.PrevKv != nil && was.create == 0:
			t.Fatalf("revision %d: previous version %v, want %+v", rev, e.PrevKv, was)
		case e.PrevKv != nil:
			if _, prev, err := histEntryOf(e.PrevKv); err != nil || prev != was {
				t.Fatalf("revision %d: previous version %+v, %v, want %+v", rev, prev, err, was)
			}
		}
		s.kv[key] = now
	}
	return s
}

// checkLog holds the log against what the clients were answered: every write that
// was acknowledged is where the answer said, and what nobody was answered for is
// what somebody tried.
func (h *history) checkLog(tr *truth) {
	h.t.Helper()
	answered := make(map[int64]histInput)
	tried := make(map[string]int)
	for _, op := range h.ops {
		switch {
		case op.out.unknown && op.in.writes():
			tried[fmt.Sprint("put ", op.in.value)]++
		case op.out.unknown:
			tried["delete "+histKey(op.in.key)]++
		case op.out.done:
			if other, twice := answered[op.out.rev]; twice {
				h.t.Fatalf("revision %d was the answer to %+v and %+v", op.out.rev, other, op.in)
			}
			answered[op.out.rev] = op.in
		}
	}
	for rev, events := range tr.log {
		in, known := answered[rev]
		delete(answered, rev)
		for _, e := range events {
			did := "delete " + string(e.Kv.Key)
			value := int64(0)
			if e.Type == mvccpb.Event_PUT {
				_, entry, err := histEntryOf(e.Kv)
				if err != nil {
					h.t.Fatal(err)
				}
				value = entry.value
				did = fmt.Sprint("put ", value)
			}
			switch {
			case !known && tried[did] == 0:
				h.t.Errorf("revision %d: nobody tried to %s", rev, did)
			case known && (value != 0) != in.writes(), known && value != 0 && value != in.value:
				h.t.Errorf("revision %d: %s, acknowledged was %+v", rev, did, in)
			}
		}
	}
	for rev, in := range answered {
		h.t.Errorf("revision %d was the answer to %+v and is not in the log", rev, in)
	}
}
