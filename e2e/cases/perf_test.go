package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Asking for the first key of a huge prefix costs what asking for one key costs,
// and the count stays exact (20745, 11990).
func TestLimitOneOfHugePrefix(t *testing.T) {
	s := serve(t)
	keys := harness.Sized(60_000, 1_000_000)
	s.fill("huge/", keys)
	timed := func(r *pb.RangeRequest) time.Duration {
		t.Helper()
		begin := time.Now()
		got := s.Read(r)
		took := time.Since(begin)
		if len(r.RangeEnd) > 0 && (got.Count != int64(keys) || len(got.Kvs) != 1 || !got.More || string(got.Kvs[0].Key) != "huge/0000000") {
			t.Fatalf("%v: %d of %d keys, more %v", r, len(got.Kvs), got.Count, got.More)
		}
		return took
	}
	for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_ASCEND} {
		// In turns, so that what else the machine does falls on both.
		var points, firsts []time.Duration
		for range harness.Sized(300, 1000) {
			points = append(points, timed(&pb.RangeRequest{Key: []byte("huge/0000000")}))
			firsts = append(firsts, timed(harness.UnderPrefix("huge/", &pb.RangeRequest{Limit: 1, SortOrder: order})))
		}
		slices.Sort(points)
		slices.Sort(firsts)
		point, first := points[len(points)/2], firsts[len(firsts)/2]
		t.Logf("%v: %v, one key by name %v", order, first, point)
		if first > 5*point+2*time.Millisecond {
			t.Errorf("the first of %d keys takes %v, one by name %v", keys, first, point)
		}
	}
	if n := s.Count("huge/"); n != int64(keys) {
		t.Errorf("count %d, want %d", n, keys)
	}
	s.Delete("huge/0000001")
	if n := s.Count("huge/"); n != int64(keys-1) {
		t.Errorf("count %d, want %d", n, keys-1)
	}
}

// profileNumber reads a number from one of the server's profiles.
func (s *served) profileNumber(path, pattern string) int64 {
	s.T.Helper()
	r, err := http.Get("http://" + s.Addr + "/debug/pprof/" + path)
	if err != nil {
		s.T.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.T.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(body)
	if m == nil {
		s.T.Fatalf("%s: no %s", path, pattern)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		s.T.Fatal(err)
	}
	return n
}

func (s *served) goroutines() int64 {
	s.T.Helper()
	return s.profileNumber("goroutine?debug=1", `goroutine profile: total (\d+)`)
}

// heap returns the bytes that live on the heap after a collection.
func (s *served) heap() int64 {
	s.T.Helper()
	s.profileNumber("heap?debug=1&gc=1", `# HeapAlloc = (\d+)`)
	return s.profileNumber("heap?debug=1&gc=1", `# HeapAlloc = (\d+)`)
}

// comesDown waits until a number is at most some level.
func (s *served) comesDown(what string, level int64, read func() int64) {
	s.T.Helper()
	end := time.Now().Add(harness.LongWait / 2)
	for {
		got := read()
		if got <= level {
			return
		}
		if time.Now().After(end) {
			s.T.Errorf("%s: %d, want at most %d", what, got, level)
			return
		}
		wait := time.NewTimer(50 * time.Millisecond)
		<-wait.C
	}
}

// many are the streams of one client with watchers on them.
type many struct {
	tapes    []*harness.WatchStream
	watchers int
}

// watchMany opens streams with watchers on keys of their own, from a revision on,
// and waits until all are created.
func (s *served) watchMany(streams, each int, start int64) *many {
	s.T.Helper()
	m := &many{watchers: streams * each}
	c := pb.NewWatchClient(s.Connect())
	var wg sync.WaitGroup
	for i := range streams {
		w := harness.OpenWatch(s.T, c)
		m.tapes = append(m.tapes, w)
		wg.Go(func() {
			for j := range each {
				key := fmt.Appendf(nil, "idle/%d/%d", i, j)
				err := w.Stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &createWatch{Key: key, StartRevision: start}}})
				if err != nil {
					s.T.Errorf("create: %v", err)
					return
				}
			}
		})
		wg.Go(func() {
			for range each {
				if r, err := w.Stream.Recv(); err != nil || !r.Created || r.Canceled {
					s.T.Errorf("create: %v, %v", r, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return m
}

// Idle watchers cost nothing; when all their streams break at once they resume in
// seconds, none is left over and none is missing (8387, 9839).
func TestIdleWatchersAndReconnectStorm(t *testing.T) {
	s := serve(t, "--enable-pprof")
	streams, each := harness.Sized(20, 100), 1000
	recent := s.Revision()
	for range 500 {
		s.Put("other", "")
	}
	began, heap := s.goroutines(), s.heap()
	m := s.watchMany(streams, each, recent)
	load := s.Load(2 * time.Second)
	t.Logf("%d watchers: %.1f%% of a core, %d bytes each", m.watchers, 100*load, (s.heap()-heap)/int64(m.watchers))
	if load > 0.3 {
		t.Errorf("idle watchers take %.1f%% of a core", 100*load)
	}
	for range 2 {
		for _, w := range m.tapes {
			w.Stop()
		}
		harness.InTime(t, "resuming", harness.LongWait/2, func() { m = s.watchMany(streams, each, recent) })
	}
	// One event for each watcher, and no more.
	for i := range streams {
		r := &pb.TxnRequest{}
		for j := range each {
			r.Success = append(r.Success, harness.OpPut(fmt.Sprintf("idle/%d/%d", i, j), ""))
			if len(r.Success) == 125 {
				s.Txn(r)
				r = &pb.TxnRequest{}
			}
		}
	}
	for i, w := range m.tapes {
		seen := make(map[int64]bool)
		for range each {
			r := w.Next()
			if len(r.Events) != 1 || seen[r.WatchId] {
				t.Fatalf("stream %d: %v", i, r)
			}
			seen[r.WatchId] = true
		}
		w.Progress()
		if r := w.Next(); r.WatchId != -1 {
			t.Fatalf("stream %d: more than one event: %v", i, r)
		}
		w.Stop()
	}
	for i := range streams {
		s.DeletePrefix(fmt.Sprintf("idle/%d/", i)) // what is left shall be the watchers'
	}
	s.Compact(s.Revision())
	s.comesDown("goroutines", began+20, s.goroutines)
	s.comesDown("heap", heap+8*harness.MiB, s.heap)
}

// Watches and streams that clients leave, in whatever way, leave nothing behind;
// and a new one is answered at once (etcd-io/jetcd#1518, coredns/coredns#6645). A
// stream that is only closed from the client's side for sending goes on to hear of
// events, as etcd's does, and ends with its connection.
func TestClosedWatchersFreeEverything(t *testing.T) {
	s := serve(t, "--enable-pprof")
	streams := harness.Sized(1000, 10_000)
	s.OpenWatch().Stop() // what the first stream allocates for good
	began, heap := s.goroutines(), s.heap()

	conn := s.Connect()
	c := pb.NewWatchClient(conn)
	for range 10 {
		for range streams / 10 {
			w := harness.OpenWatch(t, c)
			w.Create(&createWatch{Key: []byte("k")})
			w.Created()
			if err := w.Stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
	}
	conn.Close()
	s.comesDown("goroutines after half-closed streams", began+20, s.goroutines)

	c = pb.NewWatchClient(s.Connect())
	for range streams {
		w := harness.OpenWatch(t, c)
		w.Create(&createWatch{Key: []byte("k")})
		w.Stop()
		for {
			if _, err := w.Stream.Recv(); err != nil {
				if errors.Is(err, io.EOF) {
					t.Fatal("ended without an error")
				}
				break
			}
		}
	}
	s.comesDown("goroutines after reset streams", began+20, s.goroutines)

	const watches = 5000
	ctx, cancel := context.WithCancel(t.Context())
	client := s.Client()
	defer client.Close()
	var gone sync.WaitGroup
	for i := range watches {
		watched := client.Watch(ctx, "w/"+strconv.Itoa(i))
		gone.Go(func() {
			for range watched {
			}
		})
	}
	cancel()
	gone.Wait()
	harness.InTime(t, "a new watch", harness.Promptly, func() {
		watched := client.Watch(s.Bound(), "new")
		s.Put("new", "")
		if r := <-watched; r.Err() != nil || len(r.Events) != 1 {
			t.Errorf("new watch: %v", r)
		}
	})
	client.Close()
	s.comesDown("goroutines after all", began+20, s.goroutines)
	s.comesDown("heap", heap+8*harness.MiB, s.heap)
}
