package cases

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// session opens a session, which the test's end closes.
func (s *served) session(c *clientv3.Client) *concurrency.Session {
	s.T.Helper()
	session, err := concurrency.NewSession(c, concurrency.WithTTL(60))
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(session.Orphan)
	return session
}

func (s *served) lock(m *concurrency.Mutex) {
	s.T.Helper()
	if err := m.Lock(s.Bound()); err != nil {
		s.T.Fatalf("lock: %v", err)
	}
}

func (s *served) unlock(m *concurrency.Mutex) {
	s.T.Helper()
	if err := m.Unlock(s.Bound()); err != nil {
		s.T.Fatalf("unlock: %v", err)
	}
}

// await waits until a prefix has n keys.
func (s *served) await(prefix string, n int64) {
	s.T.Helper()
	end := time.Now().Add(harness.LongWait)
	for got := s.Count(prefix); got != n; got = s.Count(prefix) {
		if time.Now().After(end) {
			s.T.Fatalf("%s has %d keys, want %d", prefix, got, n)
		}
	}
}

// locking locks in the background.
func (s *served) locking(ctx context.Context, m *concurrency.Mutex) <-chan error {
	done := make(chan error, 1)
	go func() { done <- m.Lock(ctx) }()
	return done
}

// A waiter that wakes up because the one before it died does not own the lock
// while the holder lives (6408, 16221).
func TestDeadWaiterHandsNothingOn(t *testing.T) {
	s := serve(t)
	a, b, c := s.session(s.C), s.session(s.C), s.session(s.C)
	ma, mb, mc := concurrency.NewMutex(a, "l"), concurrency.NewMutex(b, "l"), concurrency.NewMutex(c, "l")
	s.lock(ma)
	s.locking(s.Bound(), mb)
	s.await("l/", 2)
	third := s.locking(s.Bound(), mc)
	s.await("l/", 3)
	s.Revoke(int64(b.Lease()))
	s.await("l/", 2)
	harness.Still(t, "the third has the lock of the first", third)
	s.unlock(ma)
	if err := harness.Within(t, "the third", harness.Promptly, third); err != nil {
		t.Errorf("the third: %v", err)
	}
}

// Who gives up waiting is gone from the queue, also if the server stood still
// meanwhile (10111, 18082).
func TestGivingUpWhileWaiting(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen=%v", frozen), func(t *testing.T) {
			s := serve(t)
			ma := concurrency.NewMutex(s.session(s.C), "l")
			mb := concurrency.NewMutex(s.session(s.C), "l")
			mc := concurrency.NewMutex(s.session(s.C), "l")
			s.lock(ma)
			deadline, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			second := s.locking(deadline, mb)
			s.await("l/", 2)
			third := s.locking(s.Bound(), mc)
			s.await("l/", 3)
			if frozen {
				if err := s.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				<-deadline.Done()
				if err := s.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			if err := harness.Within(t, "the second", time.Second+harness.Promptly, second); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the second: %v", err)
			}
			harness.InTime(t, "the key of the one who gave up", harness.Promptly, func() { s.await("l/", 2) })
			s.unlock(ma)
			if err := harness.Within(t, "the third", harness.Promptly, third); err != nil {
				t.Errorf("the third: %v", err)
			}
		})
	}
}

// A session that locks twice has the lock at once, by the same key (11364, 7444).
func TestSessionLocksTwice(t *testing.T) {
	s := serve(t)
	session := s.session(s.C)
	first, second := concurrency.NewMutex(session, "l"), concurrency.NewMutex(session, "l")
	s.lock(first)
	before := s.Read(&pb.RangeRequest{Key: []byte(first.Key())})
	s.lock(second)
	after := s.Read(&pb.RangeRequest{Key: []byte(second.Key())})
	if first.Key() != second.Key() || before.Kvs[0].CreateRevision != after.Kvs[0].CreateRevision || s.Count("l/") != 1 {
		t.Errorf("keys %v, then %v", before.Kvs, after.Kvs)
	}
}

// An election's name may be a prefix of other keys (6278).
func TestElectionNameIsPrefixOfKeys(t *testing.T) {
	s := serve(t)
	s.Put("xyz", "")
	e := concurrency.NewElection(s.session(s.C), "xy")
	if err := e.Campaign(s.Bound(), "a"); err != nil {
		t.Fatal(err)
	}
	if kv := s.Read(&pb.RangeRequest{Key: []byte(e.Key())}).Kvs; len(kv) != 1 || string(kv[0].Value) != "a" {
		t.Errorf("the leader's key: %v", kv)
	}
}

// An observer that hears late of two candidates hears of the older one first
// (18163).
func TestObserversSeeCandidatesInOrder(t *testing.T) {
	s := serve(t)
	start := s.Revision() + 1
	first := concurrency.NewElection(s.session(s.C), "e")
	if err := first.Campaign(s.Bound(), "1"); err != nil {
		t.Fatal(err)
	}
	second := concurrency.NewElection(s.session(s.C), "e")
	go func() { _ = second.Campaign(s.Bound(), "2") }()
	s.await("e/", 2)
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("e/"), RangeEnd: []byte("e0"), StartRevision: start})
	id := w.Created()
	events := eventsOf(w, id, 2)
	if string(events[0].Kv.Value) != "1" || string(events[1].Kv.Value) != "2" {
		t.Errorf("candidates in the order %q, %q", events[0].Kv.Value, events[1].Kv.Value)
	}
	oldest := s.Read(harness.UnderPrefix("e/", &pb.RangeRequest{
		SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND, Limit: 1,
	}))
	if len(oldest.Kvs) != 1 || string(oldest.Kvs[0].Value) != "1" {
		t.Errorf("the oldest candidate: %v", oldest.Kvs)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	if r, ok := <-first.Observe(ctx); !ok || string(r.Kvs[0].Value) != "1" {
		t.Errorf("the observer sees %v", r.Kvs)
	}
}

// To resign from a reign that is over changes nothing of the present one (22123,
// 22124).
func TestResignLate(t *testing.T) {
	s := serve(t)
	session := s.session(s.C)
	e := concurrency.NewElection(session, "e")
	if err := e.Campaign(s.Bound(), "first"); err != nil {
		t.Fatal(err)
	}
	key, r1 := e.Key(), e.Rev()
	if err := e.Resign(s.Bound()); err != nil {
		t.Fatal(err)
	}
	if err := e.Campaign(s.Bound(), "second"); err != nil {
		t.Fatal(err)
	}
	if e.Key() != key || e.Rev() <= r1 {
		t.Errorf("second reign: %s at %d, first %s at %d", e.Key(), e.Rev(), key, r1)
	}
	late := concurrency.ResumeElection(session, "e", key, r1)
	if err := late.Resign(s.Bound()); err != nil {
		t.Errorf("late: %v", err)
	}
	if kv := s.Read(&pb.RangeRequest{Key: []byte(key)}).Kvs; len(kv) != 1 || kv[0].CreateRevision != e.Rev() {
		t.Errorf("the second reign is over: %v", kv)
	}
}

// Who lost the leadership because its key was deleted can campaign again with the
// same session (11777).
func TestCampaignAfterDeletedKey(t *testing.T) {
	s := serve(t)
	session := s.session(s.C)
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("e/"), RangeEnd: []byte("e0"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}})
	id := w.Created()
	last := int64(0)
	for range harness.Sized(100, 500) {
		e := concurrency.NewElection(session, "e")
		if err := e.Campaign(s.Bound(), "me"); err != nil {
			t.Fatal(err)
		}
		if e.Rev() <= last {
			t.Fatalf("reign at %d after %d", e.Rev(), last)
		}
		last = e.Rev()
		s.Delete(e.Key())
		eventsOf(w, id, 1)
	}
}

// Ten clients pass a lock round: each hand-over is prompt, none finds two holders,
// which a counter shows that only the holder's fenced transactions change
// (kragniz/python-etcd3#1107).
func TestHandOverUnderLoad(t *testing.T) {
	s := serve(t)
	const clients = 10
	rounds := harness.Sized(30, 1000)
	s.Put("counter", "0")
	var counted int
	var released atomic.Int64
	var slowest time.Duration
	var wg sync.WaitGroup
	for range clients {
		c := s.Client()
		t.Cleanup(func() { c.Close() })
		m := concurrency.NewMutex(s.session(c), "l")
		wg.Go(func() {
			for range rounds {
				if err := m.Lock(s.Bound()); err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				// The lock itself guards these from here on.
				if at := released.Load(); at != 0 {
					slowest = max(slowest, time.Since(time.Unix(0, at)))
				}
				counted++
				r, err := c.Txn(s.Bound()).If(m.IsOwner(), clientv3.Compare(clientv3.Value("counter"), "=", strconv.Itoa(counted-1))).
					Then(clientv3.OpPut("counter", strconv.Itoa(counted))).Commit()
				if err != nil || !r.Succeeded {
					t.Errorf("count %d: %v, %v", counted, r, err)
					return
				}
				released.Store(time.Now().UnixNano())
				if err := m.Unlock(s.Bound()); err != nil {
					t.Errorf("unlock: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if counted != clients*rounds || string(s.Get("counter")) != strconv.Itoa(counted) {
		t.Errorf("%d hand-overs, counter %s, want %d", counted, s.Get("counter"), clients*rounds)
	}
	if slowest > harness.Promptly {
		t.Errorf("a hand-over took %v", slowest)
	}
	t.Logf("%d hand-overs, the slowest took %v", counted, slowest)
}

// A lock's tokens rise over crashes, compactions and deletions of the lock's key
// (11788).
func TestTokensOnlyGrow(t *testing.T) {
	s := serve(t)
	m := concurrency.NewMutex(s.session(s.C), "l")
	last, rounds := int64(0), harness.Sized(100, 1000)
	for i := range rounds {
		err := harness.UntilDone(s.Bound(), func() error { return m.Lock(s.Bound()) })
		if err != nil {
			t.Fatal(err)
		}
		kvs := s.Read(&pb.RangeRequest{Key: []byte(m.Key())}).Kvs
		if len(kvs) != 1 || kvs[0].CreateRevision <= last {
			t.Fatalf("round %d: token %v after %d", i, kvs, last)
		}
		last = kvs[0].CreateRevision
		switch i % 25 {
		case 10:
			s.Compact(s.Revision())
		case 11:
			s.Restart()
		case 12:
			s.Delete(m.Key())
		}
		if err := harness.UntilDone(s.Bound(), func() error { return m.Unlock(s.Bound()) }); err != nil && !errors.Is(err, concurrency.ErrLockReleased) {
			t.Fatal(err)
		}
	}
}

// What the recipes stand on: the transaction that creates a key is answered with
// the key's own revision, no answer is older than what it follows, and a watch
// from there misses nothing (16223, gazette/core#336).
func TestRevisionContract(t *testing.T) {
	s := serve(t)
	for i := range 16 {
		key := fmt.Sprintf("%c/contract", 'a'+i)
		created, err := s.C.Txn(s.Bound()).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, ""), clientv3.OpGet(key)).Commit()
		if err != nil || !created.Succeeded {
			t.Fatalf("create %s: %v, %v", key, created, err)
		}
		kv := created.Responses[1].GetResponseRange().Kvs[0]
		if rev := created.Header.Revision; kv.CreateRevision != rev || kv.ModRevision != rev {
			t.Errorf("%s created by the transaction at %d: %v", key, rev, kv)
		}
		elsewhere := s.Put(fmt.Sprintf("%c/elsewhere", 'p'-i), "")
		got := s.Read(&pb.RangeRequest{Key: []byte(key)})
		if got.Header.Revision < elsewhere {
			t.Errorf("a read at %d after a write at %d", got.Header.Revision, elsewhere)
		}
		w := s.OpenWatch()
		w.Create(&createWatch{Key: []byte(key), StartRevision: got.Header.Revision + 1})
		id := w.Created()
		at := s.Delete(key)
		if line, want := told(eventsOf(w, id, 1)), fmt.Sprintf("DELETE %s@%d", key, at); line != want {
			t.Errorf("events %s, want %s", line, want)
		}
		w.Stop()
	}
}

// The recipes of etcd's Go client.
func TestRecipes(t *testing.T) {
	s := serve(t)
	run := func(what string, steps ...func() error) {
		t.Helper()
		for i, step := range steps {
			done := make(chan error, 1)
			go func() { done <- step() }()
			if err := harness.Within(t, what, harness.LongWait, done); err != nil {
				t.Errorf("%s, step %d: %v", what, i, err)
			}
		}
	}
	b := recipe.NewBarrier(s.C, "barrier")
	run("hold barrier", b.Hold)
	waited := make(chan error, 1)
	go func() { waited <- b.Wait() }()
	harness.Still(t, "passed a barrier that is held", waited)
	run("barrier", b.Release, func() error { return <-waited })

	one, two := s.session(s.C), s.session(s.C)
	r1, r2 := recipe.NewRWMutex(one, "rw"), recipe.NewRWMutex(two, "rw")
	run("read locks", r1.RLock, r2.RLock, r1.RUnlock)
	wrote := make(chan error, 1)
	go func() { wrote <- r1.Lock() }()
	harness.Still(t, "a write lock beside a read lock", wrote)
	run("write lock", r2.RUnlock, func() error { return <-wrote }, r1.Unlock)

	d1, d2 := recipe.NewDoubleBarrier(one, "double", 2), recipe.NewDoubleBarrier(two, "double", 2)
	entered := make(chan error, 1)
	go func() { entered <- d1.Enter() }()
	harness.Still(t, "one entered alone", entered)
	run("double barrier", d2.Enter, func() error { return <-entered })
	left := make(chan error, 1)
	go func() { left <- d1.Leave() }()
	run("double barrier", d2.Leave, func() error { return <-left })

	q := recipe.NewQueue(s.C, "queue")
	run("enqueue", func() error { return q.Enqueue("1") }, func() error { return q.Enqueue("2") })
	for _, want := range []string{"1", "2"} {
		if got, err := q.Dequeue(); err != nil || got != want {
			t.Errorf("dequeued %q, %v, want %s", got, err, want)
		}
	}
	pq := recipe.NewPriorityQueue(s.C, "priority")
	run("enqueue", func() error { return pq.Enqueue("late", 9) }, func() error { return pq.Enqueue("early", 1) })
	for _, want := range []string{"early", "late"} {
		if got, err := pq.Dequeue(); err != nil || got != want {
			t.Errorf("dequeued %q, %v, want %s", got, err, want)
		}
	}

	// Transfers between accounts keep the sum.
	const accounts, transfers = 5, 20
	for i := range accounts {
		s.Put(fmt.Sprintf("account/%d", i), "100")
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range transfers {
				from, to := fmt.Sprintf("account/%d", (g+i)%accounts), fmt.Sprintf("account/%d", (g+2*i+1)%accounts)
				if from == to {
					continue
				}
				_, err := concurrency.NewSTM(s.C, func(stm concurrency.STM) error {
					a, errA := strconv.Atoi(stm.Get(from))
					b, errB := strconv.Atoi(stm.Get(to))
					stm.Put(from, strconv.Itoa(a-1))
					stm.Put(to, strconv.Itoa(b+1))
					return errors.Join(errA, errB)
				}, concurrency.WithAbortContext(s.Bound()))
				if err != nil {
					t.Errorf("transfer: %v", err)
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, kv := range s.Read(harness.UnderPrefix("account/", &pb.RangeRequest{})).Kvs {
		n, err := strconv.Atoi(string(kv.Value))
		if err != nil {
			t.Error(err)
		}
		sum += n
	}
	if sum != accounts*100 {
		t.Errorf("the accounts' sum is %d", sum)
	}
}
