package fence

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestGuardChecks(t *testing.T) {
	var g Guard
	for _, step := range []struct {
		resource string
		token    Token
		want     error
	}{
		{"a", 5, nil},
		{"a", 5, nil},
		{"a", 4, &StaleError{"a", 4, 5}},
		{"b", 4, nil},
		{"a", 9, nil},
		{"a", 5, &StaleError{"a", 5, 9}},
		{"a", 0, ErrInvalid},
		{"a", -9, ErrInvalid},
		{"a", 9, nil},
	} {
		err := g.Check(step.resource, step.token)
		var stale, want *StaleError
		switch {
		case errors.As(step.want, &want):
			if !errors.As(err, &stale) || *stale != *want || !errors.Is(err, ErrStale) {
				t.Errorf("%s, %d: %v, want %v", step.resource, step.token, err, step.want)
			}
		case !errors.Is(err, step.want):
			t.Errorf("%s, %d: %v, want %v", step.resource, step.token, err, step.want)
		}
	}
}

// A higher token waits for those with lower ones that are at work, and lets no more in.
func TestGuardWaitsForTheOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Guard
		enter := func(token Token) func() {
			leave, err := g.Enter(t.Context(), "r", token)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		first, second := enter(1), enter(1)
		var third func()
		go func() { third = enter(3) }()
		synctest.Wait()
		if third != nil {
			t.Fatal("the higher token was let in while the lower one was at work")
		}
		if _, err := g.Enter(t.Context(), "r", 1); !errors.Is(err, ErrStale) {
			t.Fatalf("the lower token was let in behind the higher one: %v", err)
		}
		first()
		first() // a second call does nothing
		synctest.Wait()
		if third != nil {
			t.Fatal("one of two has left, and the higher token was let in")
		}
		second()
		synctest.Wait()
		if third == nil {
			t.Fatal("both have left, and the higher token still waits")
		}
		fourth := enter(3) // beside the third
		third()
		fourth()
	})
}

func TestGuardGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Guard
		leave, err := g.Enter(t.Context(), "r", 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := g.Enter(ctx, "r", 2)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want the context's error", err)
		}
		leave()
		if err := g.Check("r", 1); !errors.Is(err, ErrStale) {
			t.Fatalf("a token that gave up was forgotten: %v", err)
		}
	})
}

// While anybody with a token is inside, nobody with another is; and tokens enter in
// rising order.
func TestGuardExcludes(t *testing.T) {
	var g Guard
	var mu sync.Mutex
	inside := map[Token]int{}
	var entered []Token
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			for i := range 300 {
				token := Token(1 + i/10 + (n+5*i)%8)
				leave, err := g.Enter(t.Context(), "r", token)
				if err != nil {
					continue
				}
				mu.Lock()
				inside[token]++
				if len(inside) > 1 {
					t.Errorf("inside beside each other: %v", inside)
				}
				entered = append(entered, token)
				mu.Unlock()
				mu.Lock()
				if inside[token]--; inside[token] == 0 {
					delete(inside, token)
				}
				mu.Unlock()
				leave()
			}
		})
	}
	wg.Wait()
	if !slices.IsSorted(entered) {
		t.Error("tokens entered that are not in rising order")
	}
	if len(slices.Compact(entered)) < 20 {
		t.Errorf("only %d tokens entered", len(entered))
	}
}
