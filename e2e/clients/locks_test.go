package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/latchkey-db/latchkey/client"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// holderEnv makes the test binary a holder of a lock: the server's address.
const holderEnv = "LATCHKEY_E2E_HOLDER"

// holdLock is a process that takes a lock, and says whether it has it whenever it is asked.
func holdLock(addr string) int {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx := context.Background()
	session, err := client.New(etcd).Open(ctx, 2*time.Second)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	grant, err := session.Acquire(ctx, "stopped")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fmt.Println(grant.Lost())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(grant.Lost())
	}
	return 0
}

// etcdAddr starts an etcd and returns its address.
func etcdAddr(t *testing.T) string {
	t.Helper()
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{local}, []url.URL{local}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.UnsafeNoFsync = true
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(harness.LongWait):
		t.Fatal("etcd is not ready")
	}
	return e.Clients[0].Addr().String()
}

// locks is a store with clients of it.
type locks struct {
	*testing.T
	etcd *clientv3.Client
	c    *client.Client
	name string
}

// onBoth runs a test on Latchkey and on etcd.
func onBoth(t *testing.T, fn func(l *locks)) {
	t.Helper()
	for store, start := range map[string]func(*testing.T) string{
		"latchkey": func(t *testing.T) string { t.Helper(); return harness.NewProcess(t).Addr },
		"etcd":     etcdAddr,
	} {
		t.Run(store, func(t *testing.T) {
			etcd := harness.Dial(t, start(t))
			t.Cleanup(func() { _ = etcd.Close() })
			fn(&locks{t, etcd, client.New(etcd), "locks/" + store})
		})
	}
}

func (l *locks) open() *client.Session {
	l.Helper()
	s, err := l.c.Open(l.Context(), 20*time.Second)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func (l *locks) acquire(s *client.Session, opts ...client.Option) *client.Grant {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), harness.LongWait)
	defer cancel()
	g, err := s.Acquire(ctx, l.name, opts...)
	if err != nil {
		l.Fatal(err)
	}
	return g
}

// later acquires in the background.
func (l *locks) later(s *client.Session, opts ...client.Option) <-chan *client.Grant {
	got := make(chan *client.Grant, 1)
	go func() {
		if g, err := s.Acquire(l.Context(), l.name, opts...); err == nil {
			got <- g
		}
	}()
	return got
}

// queued waits until so many keys stand in the queue.
func (l *locks) queued(n int64) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), harness.LongWait)
	defer cancel()
	err := harness.UntilDone(ctx, func() error {
		resp, err := l.etcd.Get(ctx, l.name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && resp.Count != n {
			err = fmt.Errorf("%d in the queue, want %d", resp.Count, n)
		}
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
}

func (l *locks) granted(got <-chan *client.Grant) *client.Grant {
	l.Helper()
	select {
	case g := <-got:
		return g
	case <-time.After(harness.LongWait):
		l.Fatal("the lock is not granted")
		return nil
	}
}

func (l *locks) release(g *client.Grant) {
	l.Helper()
	if err := g.Release(l.Context()); err != nil {
		l.Fatal(err)
	}
	if !errors.Is(g.Lost(), client.ErrReleased) || g.Context().Err() == nil {
		l.Errorf("a lock that was released is lost because of %v", g.Lost())
	}
}

func TestLockClient(t *testing.T) {
	t.Parallel()
	onBoth(t, func(l *locks) {
		a, b := l.open(), l.open()
		first := l.acquire(a)
		if first.Lost() != nil || first.Context().Err() != nil {
			t.Fatalf("just acquired, lost: %v", first.Lost())
		}
		if _, err := b.TryAcquire(l.Context(), l.name); !errors.Is(err, client.ErrNotAcquired) {
			l.Errorf("tried a lock that is held: %v", err)
		}
		if _, err := a.TryAcquire(l.Context(), l.name); !errors.Is(err, client.ErrNotAcquired) {
			l.Errorf("tried a lock that the session itself has: %v", err)
		}
		// A lock that is waited for for a while leaves nothing behind.
		short, cancel := context.WithTimeout(l.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := b.Acquire(short, l.name); !errors.Is(err, context.DeadlineExceeded) {
			l.Errorf("waited for a while: %v", err)
		}
		l.queued(1)
		// In one line with concurrency.Mutex.
		session := must(concurrency.NewSession(l.etcd))
		defer session.Close()
		mutex := concurrency.NewMutex(session, l.name)
		locked := make(chan error, 1)
		go func() { locked <- mutex.Lock(l.Context()) }()
		l.queued(2)
		second := l.later(b)
		l.queued(3)
		l.release(first)
		l.release(first) // repeated, it does nothing
		if err := harness.Within(t, "the mutex", harness.LongWait, locked); err != nil {
			l.Fatal(err)
		}
		harness.Still(t, "granted beside the mutex", second)
		again := l.later(a)
		l.queued(3)
		if err := mutex.Unlock(l.Context()); err != nil {
			l.Fatal(err)
		}
		g := l.granted(second)
		if g.Token() <= first.Token() {
			l.Errorf("token %d behind %d", g.Token(), first.Token())
		}
		l.release(g)
		l.release(l.granted(again))
		l.queued(0)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// One session has a lock once, whoever of its goroutines asks.
func TestLockClientGoroutines(t *testing.T) {
	t.Parallel()
	onBoth(t, func(l *locks) {
		s := l.open()
		var inside, most atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					g, err := s.Acquire(l.Context(), l.name)
					if err != nil {
						l.Error(err)
						return
					}
					most.Store(max(most.Load(), inside.Add(1)))
					inside.Add(-1)
					if err := g.Release(l.Context()); err != nil {
						l.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if most.Load() != 1 {
			l.Errorf("%d at a time", most.Load())
		}
	})
}

func TestLockClientModes(t *testing.T) {
	t.Parallel()
	onBoth(t, func(l *locks) {
		readers := []*client.Grant{l.acquire(l.open(), client.Shared()), l.acquire(l.open(), client.Shared())}
		writer := l.later(l.open())
		l.queued(3)
		late := l.later(l.open(), client.Shared())
		l.queued(4)
		harness.Still(t, "a writer beside readers", writer)
		harness.Still(t, "a reader past a writer that waits", late)
		for _, g := range readers {
			l.release(g)
		}
		w := l.granted(writer)
		harness.Still(t, "a reader beside a writer", late)
		l.release(w)
		l.release(l.granted(late))
		// A semaphore of three.
		two, one := l.acquire(l.open(), client.Permits(2, 3)), l.acquire(l.open(), client.Permits(1, 3))
		if _, err := l.open().TryAcquire(l.Context(), l.name, client.Permits(1, 3)); !errors.Is(err, client.ErrNotAcquired) {
			l.Errorf("a fourth of three permits: %v", err)
		}
		next := l.later(l.open(), client.Permits(1, 3))
		l.queued(3)
		harness.Still(t, "a fourth of three permits", next)
		l.release(one)
		l.release(l.granted(next))
		l.release(two)
		for _, opts := range [][]client.Option{
			{client.Permits(0, 3)}, {client.Permits(4, 3)}, {client.Permits(-1, -1)}, {client.Shared(), client.Permits(1, 2)},
		} {
			if _, err := l.open().TryAcquire(l.Context(), l.name, opts...); !errors.Is(err, client.ErrOption) {
				l.Errorf("bad options: %v", err)
			}
		}
	})
}

func TestLockClientLosses(t *testing.T) {
	t.Parallel()
	onBoth(t, func(l *locks) {
		lost := func(g *client.Grant, want error) {
			l.Helper()
			select {
			case <-g.Context().Done():
			case <-time.After(harness.Promptly):
				l.Fatalf("not lost; want %v", want)
			}
			if !errors.Is(g.Lost(), want) || !errors.Is(context.Cause(g.Context()), want) {
				l.Errorf("lost because of %v, want %v", g.Lost(), want)
			}
		}
		s := l.open()
		g := l.acquire(s)
		if _, err := l.etcd.Delete(l.Context(), g.Key()); err != nil {
			l.Fatal(err)
		}
		lost(g, client.ErrTaken)
		g = l.acquire(s) // the session goes on
		if err := s.Close(l.Context()); err != nil {
			l.Fatal(err)
		}
		lost(g, client.ErrClosed)
		if _, err := s.Acquire(l.Context(), l.name); !errors.Is(err, client.ErrClosed) {
			l.Errorf("acquired by a session that was closed: %v", err)
		}
		l.queued(0)
		short, err := l.c.Open(l.Context(), 6*time.Second)
		if err != nil {
			l.Fatal(err)
		}
		g = l.acquire(short)
		if _, err := l.etcd.Revoke(l.Context(), short.ID()); err != nil {
			l.Fatal(err)
		}
		<-g.Context().Done()
		if !errors.Is(g.Lost(), client.ErrExpired) && !errors.Is(g.Lost(), client.ErrTaken) {
			l.Errorf("the lease is gone, lost because of %v", g.Lost())
		}
	})
}

func TestLockClientElection(t *testing.T) {
	t.Parallel()
	onBoth(t, func(l *locks) {
		leader, err := l.open().Campaign(l.Context(), l.name, "a")
		if err != nil {
			l.Fatal(err)
		}
		session := must(concurrency.NewSession(l.etcd))
		defer session.Close()
		stock := concurrency.NewElection(session, l.name)
		says := func(want string) {
			l.Helper()
			resp, err := stock.Leader(l.Context())
			if err != nil || string(resp.Kvs[0].Value) != want {
				l.Errorf("%v, %v, want %q", resp, err, want)
			}
		}
		says("a")
		if err := leader.Proclaim(l.Context(), "b"); err != nil {
			l.Fatal(err)
		}
		says("b")
		campaign := make(chan error, 1)
		go func() { campaign <- stock.Campaign(l.Context(), "c") }()
		l.queued(2)
		l.release(leader)
		if err := harness.Within(t, "the next leader", harness.LongWait, campaign); err != nil {
			l.Fatal(err)
		}
		if err := leader.Proclaim(l.Context(), "d"); err == nil {
			l.Error("a former leader proclaims")
		}
		says("c")
	})
}

// The context of a grant ends before its lease can have ended, when the server does not
// answer any more.
func TestLockClientWithoutServer(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	etcd := p.Client()
	defer etcd.Close()
	s, err := client.New(etcd).Open(t.Context(), 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Acquire(t.Context(), "silent")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // renewals have begun
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	<-g.Context().Done()
	if after := time.Since(stopped); after >= s.TTL() || !errors.Is(g.Lost(), client.ErrExpired) {
		t.Errorf("%v after the server stopped, because of %v; the lease lasts %v", after, g.Lost(), s.TTL())
	}
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// A holder that was stopped past its lease knows when it wakes.
func TestLockClientStopped(t *testing.T) {
	t.Parallel()
	p := harness.NewProcess(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+p.Addr)
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())
	out := bufio.NewReader(must(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	says := func(want string) {
		t.Helper()
		line, err := out.ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Fatalf("the holder says %q, %v, want %q", line, err, want)
		}
	}
	says("<nil>")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	_, _ = fmt.Fprintln(in, "?")
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	says(client.ErrExpired.Error())
}

// The program of docs/client.md runs.
func TestLockClientPage(t *testing.T) {
	t.Parallel()
	page := must(os.ReadFile("../../docs/client.md"))
	_, rest, _ := strings.Cut(string(page), "```go\n")
	program, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/client.md has no program")
	}
	p := harness.NewProcess(t)
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(program, defaultAddr, p.Addr)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", file).Output()
	if err != nil || !strings.HasPrefix(string(out), "fencing token ") {
		t.Errorf("%v: %s", err, out)
	}
}

// Of two threads of work with names that wait for each other the younger one hears of it, and the
// other gets the lock when that has given back what it has.
func TestLockClientDeadlock(t *testing.T) {
	t.Parallel()
	etcd := harness.Dial(t, harness.NewProcess(t).Addr)
	t.Cleanup(func() { _ = etcd.Close() })
	l := &locks{t, etcd, client.New(etcd), "one"}
	other := &locks{t, etcd, l.c, "two"}
	a, b := l.open(), l.open()
	has := l.acquire(a, client.As("a"))
	other.acquire(b, client.As("b"))
	older := l.later(b, client.As("b"))
	l.queued(2)
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	_, err := a.Acquire(ctx, "two", client.As("a"))
	var d *client.DeadlockError
	if !errors.As(err, &d) {
		t.Fatalf("got %v", err)
	}
	if w := d.Cycle; len(w) != 2 || w[0].Client != "a" || w[0].Lock != "two" || w[1].Client != "b" || w[1].Lock != "one" ||
		w[0].Token <= w[1].Token || w[1].Waited <= 0 {
		t.Errorf("told %+v", w)
	}
	if want := `client: deadlock: "a" waits for "two" behind "b", "b" waits for "one" behind "a"`; err.Error() != want {
		t.Errorf("told %q, want %q", err, want)
	}
	other.queued(1)
	l.release(has)
	l.granted(older)
}
