package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/shard"
)

// Every caller's question is asked, so after it came, and many share an attempt.
func TestShareAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := newLifetime()
		defer life.end()
		attempts := 0
		var mu sync.Mutex
		s := share[[]int, []int]{join: func(a, b []int) []int { return append(a, b...) }, ask: func(_ context.Context, q []int) ([]int, error) {
			mu.Lock()
			attempts++
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return q, nil
		}}
		var callers sync.WaitGroup
		const calls = 1000
		for i := range calls {
			time.Sleep(100 * time.Microsecond)
			callers.Go(func() {
				asked, err := s.get(t.Context(), life, []int{i})
				if err != nil || !slices.Contains(asked, i) {
					t.Errorf("call %d was answered by an attempt that asked for %v, %v", i, asked, err)
				}
			})
		}
		callers.Wait()
		if attempts > calls/20 {
			t.Errorf("%d attempts for %d calls", attempts, calls)
		}
	})
}

// A caller that gives up leaves the others alone, and an end reaches all.
func TestShareEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := newLifetime()
		s := share[int, int]{join: func(int, int) int { return 0 }, ask: func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var callers sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			ctx := t.Context()
			if i == 1 {
				ctx = short
			}
			callers.Go(func() { _, errs[i] = s.get(ctx, life, 0) })
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		life.end()
		callers.Wait()
		for i, err := range errs {
			want := shard.ErrStopped
			if i == 1 {
				want = context.DeadlineExceeded
			}
			if !errors.Is(err, want) {
				t.Errorf("caller %d: %v", i, err)
			}
		}
		if _, err := s.get(t.Context(), life, 0); !errors.Is(err, shard.ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
	})
}
