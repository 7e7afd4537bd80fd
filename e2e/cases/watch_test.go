package cases

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

type (
	createWatch = pb.WatchCreateRequest
	watchAnswer = pb.WatchResponse
)

// told puts events into a line: "PUT k@3 DELETE k@4".
func told(events []*mvccpb.Event) string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = fmt.Sprintf("%s %s@%d", e.Type, e.Kv.Key, e.Kv.ModRevision)
	}
	return strings.Join(lines, " ")
}

// eventsOf reads n events of one watch, which must be all that comes.
func eventsOf(w *harness.WatchStream, id int64, n int) []*mvccpb.Event {
	w.T.Helper()
	var all []*mvccpb.Event
	for len(all) < n {
		r := w.Next()
		if r.WatchId != id || r.Created || r.Canceled {
			w.T.Fatalf("watch %d got %v", id, r)
		}
		all = append(all, r.Events...)
	}
	return all
}

// A delete exactly at the compact revision is still history (18089).
func TestWatchFromDeleteAtCompaction(t *testing.T) {
	s := serve(t)
	r := s.Revision()
	s.Put("k", "1")
	s.Put("k", "2")
	s.Delete("k")
	s.Put("k", "3")
	s.Compact(r + 3)
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("k"), StartRevision: r + 3})
	id := w.Created()
	if got, want := told(eventsOf(w, id, 2)), fmt.Sprintf("DELETE k@%d PUT k@%d", r+3, r+4); got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	w.Create(&createWatch{Key: []byte("k"), StartRevision: r + 2})
	id = w.Created()
	if end := w.Next(); !end.Canceled || end.WatchId != id || end.CompactRevision != r+3 || len(end.Events) != 0 {
		t.Errorf("watch below the compaction: %v", end)
	}
}

// A watcher that is overtaken by a compaction because its client doesn't read is
// told so: it sees every revision up to some point, and is canceled there if it
// isn't the last (17529).
func TestSlowWatchersAreToldOfCompaction(t *testing.T) {
	s := serve(t)
	watchers, before, after := harness.Sized(20, 40), harness.Sized(1500, 20_000), harness.Sized(100, 1000)
	w := s.OpenWatch()
	for range watchers {
		w.Create(&createWatch{Key: []byte("p/"), RangeEnd: []byte("p0"), PrevKv: true})
		w.Created()
	}
	first := s.Revision() + 1
	value := strings.Repeat("v", 2048)
	var mu sync.Mutex
	var written []int64
	write := func(n int) {
		var wg sync.WaitGroup
		for part := range 10 {
			wg.Go(func() {
				for i := part; i < n; i += 10 {
					r, err := s.KV.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "p/%d", i%100), Value: []byte(value)})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					written = append(written, r.Header.Revision)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	write(before)
	compacted := s.Revision()
	s.Compact(compacted)
	write(after)
	slices.Sort(written)
	if last := s.Revision(); len(written) != before+after || written[0] < first || last != first+int64(before+after)-1 && !harness.FourShards() {
		t.Fatalf("revisions %d to %d for %d writes", first, last, before+after)
	}
	next := make([]int, watchers) // counts what a watcher has seen
	ended, complete := 0, 0
	for ended+complete < watchers {
		r := w.Next()
		at := &next[r.WatchId]
		for _, e := range r.Events {
			if *at == len(written) || e.Kv.ModRevision != written[*at] {
				t.Fatalf("watch %d got revision %d behind %d events", r.WatchId, e.Kv.ModRevision, *at)
			}
			*at++
		}
		switch {
		case r.Canceled && r.CompactRevision == compacted && *at < before-1:
			ended++
		case r.Canceled:
			t.Fatalf("watch %d at %d: %v", r.WatchId, *at, r)
		case *at == len(written) && len(r.Events) > 0:
			complete++
		}
	}
	if ended == 0 {
		t.Errorf("no watcher was slow enough to be overtaken")
	}
	t.Logf("%d watchers saw all, %d were told of the compaction", complete, ended)
}

// Progress is also answered on watches that never saw an event (17557).
func TestProgressOfSilentWatch(t *testing.T) {
	s := serve(t)
	r := s.Put("a", "1")
	for _, start := range []int64{r, 0} {
		w := s.OpenWatch()
		w.Create(&createWatch{Key: []byte("silent"), StartRevision: start})
		w.Created()
		harness.InTime(t, "progress", harness.Promptly, func() {
			w.Progress()
			if p := w.Next(); p.WatchId != -1 || len(p.Events) != 0 || p.Header.Revision < r {
				t.Errorf("start %d: progress %v, want at least %d", start, p, r)
			}
		})
	}
}

// Zero starts now, one at the beginning, and what is negative is refused without
// harm to others (11496, 20693).
func TestWatchStarts(t *testing.T) {
	s := serve(t)
	r := s.Revision()
	if r != 1 {
		t.Fatalf("revision %d of a fresh store", r)
	}
	for i := range 3 {
		s.Put("k", strconv.Itoa(i))
	}
	w := s.OpenWatch()
	want := map[int64]string{0: "PUT k@5"}
	for id := range int64(11) {
		start := int64(1)
		if id == 0 {
			start = 0
		} else {
			want[id] = "PUT k@2 PUT k@3 PUT k@4 PUT k@5"
		}
		w.Create(&createWatch{Key: []byte("k"), StartRevision: start})
		if id == 3 {
			w.Create(&createWatch{Key: []byte("k"), StartRevision: -1})
			w.Create(&createWatch{Key: []byte("k"), StartRevision: -2})
		}
	}
	got := make(map[int64][]*mvccpb.Event)
	created, refused, events, written := 0, 0, 0, false
	for created < 11 || refused < 2 || events < 41 {
		a := w.Next()
		switch {
		case a.Created && a.Canceled:
			refused++
			if a.WatchId != -1 || a.CancelReason != rpctypes.ErrGRPCCompacted.Error() && a.CancelReason != rpctypes.ErrCompacted.Error() {
				t.Errorf("negative start: %v", a)
			}
		case a.Created:
			created++
		default:
			got[a.WatchId] = append(got[a.WatchId], a.Events...)
			events += len(a.Events)
		}
		if created == 11 && !written {
			written = true
			s.Put("k", "last")
		}
	}
	for id, line := range want {
		if told(got[id]) != line {
			t.Errorf("watch %d: %s, want %s", id, told(got[id]), line)
		}
	}
}

// Answers that are too large come in parts, of which all but the last say so
// (9294).
func TestFragmentedAnswers(t *testing.T) {
	const limit = 2 << 20
	s := serve(t)
	conn := s.Connect(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)))
	first := s.Revision() + 1
	want := make(map[string]bool)
	write := func(r *pb.TxnRequest) {
		rev := s.Txn(r).Header.Revision
		for _, op := range r.Success {
			want[fmt.Sprintf("PUT %s@%d", op.GetRequestPut().Key, rev)] = true
		}
	}
	value := strings.Repeat("v", 20_000)
	for i := range 20 {
		r := &pb.TxnRequest{}
		for j := range 60 {
			r.Success = append(r.Success, harness.OpPut(fmt.Sprintf("f/%d/%d", i, j), value))
		}
		write(r)
	}
	l := s.Grant(0, 600)
	keys := harness.Sized(10_000, 20_000)
	for i := 0; i < keys; i += 100 {
		r := &pb.TxnRequest{}
		for j := range 100 {
			op := harness.OpPut(fmt.Sprintf("f/lease/%s/%d", strings.Repeat("x", 200), i+j), "")
			op.GetRequestPut().Lease = l
			r.Success = append(r.Success, op)
		}
		write(r)
	}
	attached := s.Revision()
	answered := s.Revoke(l)
	ended := s.C.Watch(s.Bound(), "f/lease/", clientv3.WithPrefix(), clientv3.WithRev(attached+1), clientv3.WithFragment())
	end := (<-ended).Events[0].Kv.ModRevision
	if !harness.Follows(end, attached) || answered != end {
		t.Fatalf("revoked at %d, answered %d, want the one after %d", end, answered, attached)
	}
	for i := range keys {
		want[fmt.Sprintf("DELETE f/lease/%s/%d@%d", strings.Repeat("x", 200), i, end)] = true
	}

	w := harness.OpenWatch(t, pb.NewWatchClient(conn))
	w.Create(&createWatch{Key: []byte("f/"), RangeEnd: []byte("f0"), StartRevision: first, Fragment: true})
	id := w.Created()
	var last *watchAnswer
	rev, parts := int64(0), 0
	for seen := 0; seen < len(want); {
		last = w.Next()
		if last.WatchId != id || last.Canceled || len(last.Events) == 0 {
			t.Fatalf("%d of %d events seen, then %v", seen, len(want), last)
		}
		if last.Fragment {
			parts++
		}
		for _, e := range last.Events {
			if line := told([]*mvccpb.Event{e}); !want[line] {
				t.Fatalf("%s: twice, or never written", line)
			} else {
				want[line] = false
			}
			if e.Kv.ModRevision < rev {
				t.Fatalf("revision %d after %d", e.Kv.ModRevision, rev)
			}
			rev = e.Kv.ModRevision
			seen++
		}
	}
	if last.Fragment || parts == 0 {
		t.Errorf("%d parts, the last one announces more: %v", parts, last.Fragment)
	}

	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	rev = 0
	for r := range s.C.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithRev(first), clientv3.WithFragment()) {
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		if r.Events[0].Kv.ModRevision <= rev {
			t.Fatalf("revision %d was shown in two answers", rev)
		}
		if rev = r.Events[len(r.Events)-1].Kv.ModRevision; rev == end {
			break
		}
	}
	if rev != end {
		t.Errorf("clientv3 ended at %d, want %d", rev, end)
	}
}

// The previous value comes with an event even if its history is gone by the time
// the client reads (10681).
func TestPrevKVOfSlowWatchAfterCompaction(t *testing.T) {
	s := serve(t)
	s.Put("x", "1")
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("big"), RangeEnd: []byte("bih")})
	w.Created()
	w.Create(&createWatch{Key: []byte("x"), PrevKv: true})
	x := w.Created()
	// Fill what lies between server and client, so that the stream stands still.
	for range 16 {
		s.Put("big", strings.Repeat("b", 1<<20))
	}
	r := s.Put("x", "2")
	s.Delete("x")
	s.Put("x", "3")
	s.Compact(r + 2)
	var got []*mvccpb.Event
	for len(got) < 3 {
		if a := w.Next(); a.WatchId == x {
			if a.Canceled {
				t.Fatalf("canceled: %v", a)
			}
			got = append(got, a.Events...)
		}
	}
	if line, want := told(got), fmt.Sprintf("PUT x@%d DELETE x@%d PUT x@%d", r, r+1, r+2); line != want {
		t.Errorf("events %s, want %s", line, want)
	}
	for i, want := range []string{"1", "2"} {
		if p := got[i].PrevKv; p == nil || string(p.Value) != want {
			t.Errorf("event %d has the previous version %v, want %q", i, p, want)
		}
	}
	if p := got[2].PrevKv; p != nil {
		t.Errorf("a create event has a previous version: %v", p)
	}
}

// The answer to a create request comes before that watch's first event, also on
// a busy stream (zhongwencool/eetcd#52).
func TestCreatedComesFirst(t *testing.T) {
	s := serve(t)
	start := s.Put("a/0", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := s.KV.Put(ctx, &pb.PutRequest{Key: fmt.Appendf(nil, "a/%d", i%10)}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	w := s.OpenWatch()
	const watches = 200
	w.Create(&createWatch{Key: []byte("a/"), RangeEnd: []byte("a0")})
	go func() { // the stream is read and written by different goroutines
		for range watches {
			if w.Stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &createWatch{Key: []byte("a/"), RangeEnd: []byte("a0"), StartRevision: start},
			}}) != nil {
				return
			}
		}
	}()
	created, spoke := make(map[int64]bool), make(map[int64]bool)
	for len(spoke) < watches+1 {
		r := w.Next()
		switch {
		case r.Created && created[r.WatchId]:
			t.Fatalf("id %d was given twice", r.WatchId)
		case r.Created:
			created[r.WatchId] = true
		case !created[r.WatchId]:
			t.Fatalf("event before the answer to the request: %v", r)
		default:
			spoke[r.WatchId] = true
		}
		if len(created) == watches+1 {
			cancel()
			// What was written last may be before the last watch of the present.
			if !spoke[0] {
				s.Put("a/last", "")
			}
		}
	}
	writer.Wait()
}

// The range of everything, an empty one, and one without an end (4697, 9833).
func TestWatchOddRanges(t *testing.T) {
	s := serve(t)
	w := s.OpenWatch()
	w.Create(&createWatch{RangeEnd: []byte{0}})
	all := w.Created()
	w.Create(&createWatch{Key: []byte("b"), RangeEnd: []byte("a")})
	if r := w.Next(); !r.Created || !r.Canceled || r.WatchId != -1 || r.CancelReason == "" {
		t.Errorf("empty range: %v", r)
	}
	w.Create(&createWatch{Key: []byte("a"), RangeEnd: []byte{0}})
	from := w.Created()
	r := s.Put("0", "")
	s.Put("a", "")
	s.Put("b", "")
	got := make(map[int64][]*mvccpb.Event)
	for n := 0; n < 5; {
		a := w.Next()
		got[a.WatchId] = append(got[a.WatchId], a.Events...)
		n += len(a.Events)
	}
	if line, want := told(got[all]), fmt.Sprintf("PUT 0@%d PUT a@%d PUT b@%d", r, r+1, r+2); line != want {
		t.Errorf("everything: %s, want %s", line, want)
	}
	if line, want := told(got[from]), fmt.Sprintf("PUT a@%d PUT b@%d", r+1, r+2); line != want {
		t.Errorf("from a: %s, want %s", line, want)
	}
}

// Many writers at a time: the watcher sees each write once and revisions in order
// (xline-kv/Xline#677).
func TestConcurrentWritersAreOrdered(t *testing.T) {
	s := serve(t)
	const writers = 32
	each := harness.Sized(8000, 100_000) / writers
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("p/"), RangeEnd: []byte("p0")})
	w.Created()
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range each {
				r := &pb.PutRequest{Key: fmt.Appendf(nil, "p/%d", i), Value: strconv.AppendInt(nil, int64(n), 10)}
				if _, err := s.KV.Put(t.Context(), r); err != nil {
					t.Errorf("put: %v", err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	next := make(map[string]int)
	last := int64(0)
	for seen := 0; seen < writers*each; {
		for _, e := range w.Next().Events {
			if e.Kv.ModRevision <= last {
				t.Fatalf("revision %d after %d", e.Kv.ModRevision, last)
			}
			last = e.Kv.ModRevision
			key := string(e.Kv.Key)
			if want := strconv.Itoa(next[key]); string(e.Kv.Value) != want {
				t.Fatalf("%s = %s, want %s", key, e.Kv.Value, want)
			}
			next[key]++
			seen++
		}
	}
}

// A watch of clientv3 goes on over crashes of the server, with no event lost or
// doubled (shubhamranjan/dotnet-etcd#310).
func TestWatchResumesOverCrashes(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watched := s.C.Watch(ctx, "w/", clientv3.WithPrefix(), clientv3.WithRev(1))
	acked := make(map[int64]string)
	var stopped atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; !stopped.Load(); i++ {
			<-tick.C
			try, stop := context.WithTimeout(ctx, time.Second)
			key := "w/" + strconv.Itoa(i)
			if r, err := s.C.Put(try, key, ""); err == nil {
				acked[r.Header.Revision] = key
			}
			stop()
		}
	})
	for range 5 {
		wait := time.NewTimer(200 * time.Millisecond)
		<-wait.C
		s.Restart()
	}
	stopped.Store(true)
	writer.Wait()
	end := s.Put("w/end", "")
	seen := make(map[int64]string)
	for last := int64(0); last < end; {
		var r clientv3.WatchResponse
		select {
		case r = <-watched:
		case <-time.After(harness.LongWait):
			t.Fatalf("the watch does not go on after revision %d", last)
		}
		if err := r.Err(); err != nil || len(r.Events) == 0 {
			t.Fatalf("after revision %d: %v, %v", last, r, err)
		}
		for _, e := range r.Events {
			if e.Kv.ModRevision <= last {
				t.Fatalf("revision %d after %d", e.Kv.ModRevision, last)
			}
			last = e.Kv.ModRevision
			seen[last] = string(e.Kv.Key)
		}
	}
	for rev, key := range acked {
		if seen[rev] != key {
			t.Errorf("%s was acknowledged at %d, the watch saw %q there", key, rev, seen[rev])
		}
	}
	t.Logf("%d writes acknowledged, %d events", len(acked), len(seen))
}

// A store that lost its data is another cluster, so that clients with an old watch
// can tell.
func TestWipedStoreIsAnotherCluster(t *testing.T) {
	s := serve(t)
	before := s.Read(&pb.RangeRequest{Key: []byte("k")}).Header.ClusterId
	s.Restart()
	if again := s.Read(&pb.RangeRequest{Key: []byte("k")}).Header.ClusterId; again != before {
		t.Errorf("cluster id %x after a restart, was %x", again, before)
	}
	s.Kill()
	s.Wipe()
	s.Start()
	if after := s.Read(&pb.RangeRequest{Key: []byte("k")}).Header.ClusterId; after == before {
		t.Errorf("cluster id %x as before", after)
	}
}

// A caught-up watcher survives a compaction; one whose connection was cut may not,
// but does if it heard of progress (21128).
func TestCaughtUpWatchSurvivesCompaction(t *testing.T) {
	s := serve(t, "--watch-progress-notify-interval=100ms")
	others := func(n int) {
		for i := range n {
			s.Put("other", strconv.Itoa(i))
		}
	}
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("k"), StartRevision: s.Revision()})
	id := w.Created()
	others(100)
	s.Compact(s.Revision())
	r := s.Put("k", "")
	if got, want := told(eventsOf(w, id, 1)), fmt.Sprintf("PUT k@%d", r); got != want {
		t.Errorf("events %s, want %s", got, want)
	}

	for _, notify := range []bool{false, true} {
		key := fmt.Sprintf("k/%v", notify)
		l := harness.NewLink(t, s.Addr)
		c := harness.Dial(t, l.Addr)
		t.Cleanup(func() { c.Close() })
		opts := []clientv3.OpOption{clientv3.WithRev(s.Revision())}
		if notify {
			opts = append(opts, clientv3.WithProgressNotify())
		}
		watched := c.Watch(s.Bound(), key, opts...)
		s.Put(key, "first")
		if a := <-watched; len(a.Events) != 1 {
			t.Fatalf("first: %v", a)
		}
		others(100)
		head := s.Revision()
		for notify {
			if a := <-watched; a.Err() != nil {
				t.Fatal(a.Err())
			} else if a.Header.Revision >= head {
				break
			}
		}
		l.SetCut(true)
		s.Compact(head)
		s.Put(key, "last")
		l.SetCut(false)
		for a := range watched {
			if a.IsProgressNotify() {
				continue
			}
			if a.Canceled && (notify || a.CompactRevision != head) {
				t.Errorf("progress notices %v: %v", notify, a.Err())
			}
			if !a.Canceled && (len(a.Events) != 1 || string(a.Events[0].Kv.Value) != "last") {
				t.Errorf("progress notices %v: %v", notify, a.Events)
			}
			break
		}
	}
}
