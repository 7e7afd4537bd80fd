package clients

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// workerEnv makes the test binary a worker of the mutex test: "addr goroutines
// locks cycles".
const workerEnv = "LATCHKEY_E2E_WORKER"

// hold is one time that a lock was held. The times are those of the host, which
// all workers share.
type hold struct {
	Lock     int   `json:"lock"`
	Token    int64 `json:"token"`
	Acquired int64 `json:"acquired"`
	Released int64 `json:"released"`
}

// work is a worker process: it takes and gives back locks, and prints each hold.
func work(role string) int {
	var addr string
	var goroutines, locks, cycles int
	if _, err := fmt.Sscan(role, &addr, &goroutines, &locks, &cycles); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithConnectParams(harness.FastReconnect)},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer c.Close()
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := false
	for g := range goroutines {
		wg.Go(func() {
			err := takeTurns(c, g%locks, cycles, func(h hold) {
				mu.Lock()
				defer mu.Unlock()
				if err := out.Encode(h); err != nil {
					failed = true
				}
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = true
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	wg.Wait()
	if failed {
		return 1
	}
	return 0
}

// takeTurns locks and unlocks a lock over and over. While the server is away it
// tries again: what is not known to be released counts as held.
func takeTurns(c *clientv3.Client, lock, cycles int, report func(hold)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var s *concurrency.Session
	err := harness.UntilDone(ctx, func() (err error) {
		s, err = concurrency.NewSession(c, concurrency.WithTTL(60))
		return err
	})
	if err != nil {
		return err
	}
	defer s.Close()
	m := concurrency.NewMutex(s, "mutex/"+strconv.Itoa(lock))
	for range cycles {
		if err := harness.UntilDone(ctx, func() error { return m.Lock(ctx) }); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		acquired := time.Now().UnixNano()
		var token int64
		err := harness.UntilDone(ctx, func() error {
			r, err := c.Get(ctx, m.Key())
			if err == nil && len(r.Kvs) == 1 {
				token = r.Kvs[0].CreateRevision
			}
			return err
		})
		if err != nil || token == 0 {
			return fmt.Errorf("the holder's key is gone: %w", err)
		}
		released := time.Now().UnixNano()
		if err := harness.UntilDone(ctx, func() error { return m.Unlock(ctx) }); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		report(hold{lock, token, acquired, released})
	}
	return nil
}

// Fifty goroutines in three processes share five locks. Each lock has one holder
// at a time, is handed on in the order of asking, and every holder's token is
// greater than the last; a server that is killed and started again in the middle
// changes nothing.
func TestMutex(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%v", crash), func(t *testing.T) {
			const locks, cycles = 5, 8
			p := harness.NewProcess(t)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var holds []hold
			for _, goroutines := range []int{17, 17, 16} {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %d", workerEnv, p.Addr, goroutines, locks, cycles))
				var stderr strings.Builder
				cmd.Stderr = &stderr
				stdout, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					got, err := readHolds(stdout)
					if werr := cmd.Wait(); err != nil || werr != nil {
						t.Errorf("worker: %v %v: %s", err, werr, &stderr)
					}
					mu.Lock()
					defer mu.Unlock()
					holds = append(holds, got...)
				})
			}
			if crash {
				c := p.Client()
				waitFor(t, c, 60)
				p.Restart()
				waitFor(t, c, 140)
				p.Restart()
				c.Close()
			}
			wg.Wait()
			checkHolds(t, holds, locks, 50*cycles)
		})
	}
}

// waitFor returns when the store has seen so many revisions.
func waitFor(t *testing.T, c *clientv3.Client, rev int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		r, err := c.Get(ctx, "ready")
		if err == nil && r.Header.Revision >= rev {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("revision %d not reached: %v", rev, err)
		}
	}
}

func readHolds(r io.Reader) ([]hold, error) {
	var holds []hold
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var h hold
		if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
			return holds, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		holds = append(holds, h)
	}
	return holds, lines.Err()
}

func checkHolds(t *testing.T, holds []hold, locks, want int) {
	t.Helper()
	if len(holds) != want {
		t.Errorf("%d holds, want %d", len(holds), want)
	}
	slices.SortFunc(holds, func(a, b hold) int {
		return cmp.Or(cmp.Compare(a.Lock, b.Lock), cmp.Compare(a.Acquired, b.Acquired))
	})
	seen := make(map[int]int)
	for i, h := range holds {
		seen[h.Lock]++
		if i == 0 || holds[i-1].Lock != h.Lock {
			continue
		}
		before := holds[i-1]
		if before.Released > h.Acquired {
			t.Errorf("lock %d has two holders: %+v and %+v", h.Lock, before, h)
		}
		if before.Token >= h.Token {
			t.Errorf("lock %d: token %d after %d: tokens don't grow, or the order of asking was not kept", h.Lock, h.Token, before.Token)
		}
	}
	if len(seen) != locks {
		t.Errorf("%d locks were used, want %d", len(seen), locks)
	}
	t.Logf("%d holds of %d locks", len(holds), len(seen))
}
