package harness

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// LongWait bounds every single wait of a case. It is much longer than what is
// waited for ever takes, so that a loaded machine fails no test.
const LongWait = 60 * time.Second

// Promptly is the time in which what should happen at once must have happened, on a
// machine that is busy. It is shorter than the leases and limits that would end a wait
// which is not ended at once.
const Promptly = 10 * time.Second

// Must fails the test where a call has failed.
func Must[Resp any](tb testing.TB, resp Resp, err error) Resp {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

// Still fails the test if something happens that must not.
func Still[T any](t *testing.T, what string, done <-chan T) {
	t.Helper()
	select {
	case v := <-done:
		t.Fatalf("%s: %v", what, v)
	case <-time.After(300 * time.Millisecond):
	}
}

// Within waits for a call that runs in the background.
func Within(t *testing.T, what string, limit time.Duration, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		t.Fatalf("%s: not after %v", what, limit)
		return nil
	}
}

// UntilDone repeats fn until it succeeds.
func UntilDone(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		if err == nil || errors.Is(err, concurrency.ErrSessionExpired) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// InTime fails the test unless fn returns in time.
func InTime(tb testing.TB, what string, limit time.Duration, fn func()) {
	tb.Helper()
	begin := time.Now()
	fn()
	if took := time.Since(begin); took > limit {
		tb.Errorf("%s took %v, more than %v", what, took, limit)
	}
}
