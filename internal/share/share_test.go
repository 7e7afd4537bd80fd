package share

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errOver = errors.New("over")

// life runs attempts until it is over.
type life struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

func newLife() *life {
	l := &life{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

func (l *life) run(fn func(ctx context.Context)) error {
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	l.wg.Go(func() { fn(l.ctx) })
	return nil
}

func (l *life) end() {
	l.cancel(errOver)
	l.wg.Wait()
}

// Every caller's question is asked, so after it came, and many share an attempt.
func TestShareAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := newLife()
		defer life.end()
		attempts := 0
		var mu sync.Mutex
		s := Share[[]int, []int]{Go: life.run, Join: func(a, b []int) []int { return append(a, b...) }, Ask: func(_ context.Context, q []int) ([]int, error) {
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
				asked, err := s.Get(t.Context(), []int{i})
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
		life := newLife()
		s := Share[int, int]{Go: life.run, Join: Same[int], Ask: func(ctx context.Context, _ int) (int, error) {
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
			callers.Go(func() { _, errs[i] = s.Get(ctx, 0) })
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		life.end()
		callers.Wait()
		for i, err := range errs {
			want := errOver
			if i == 1 {
				want = context.DeadlineExceeded
			}
			if !errors.Is(err, want) {
				t.Errorf("caller %d: %v", i, err)
			}
		}
		if _, err := s.Get(t.Context(), 0); !errors.Is(err, errOver) {
			t.Errorf("after the end: %v", err)
		}
	})
}
