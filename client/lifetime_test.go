package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// testClock runs with the time of a bubble, and on top of that when it is told: a process that
// was stopped, or a machine that was suspended.
type testClock struct {
	began   time.Time
	stopped time.Duration
}

func (c *testClock) now() time.Duration { return time.Since(c.began) + c.stopped }

func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &testClock{began: time.Now()}
		l := newLifetime(c.now, 0, 10*time.Second)
		time.Sleep(9 * time.Second)
		if l.Err() != nil {
			t.Fatal("over after 9 of 10 s")
		}
		l.renewed(8*time.Second, 10*time.Second) // until 17.5
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if l.Err() != nil {
			t.Fatal("over at 17 s, behind a renewal that was sent at 8 s")
		}
		l.renewed(6*time.Second, 10*time.Second) // an older one that was answered later
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		select {
		case <-l.Context.Done():
		default:
			t.Fatal("not over at 17.6 s")
		}
		if !errors.Is(context.Cause(l.Context), ErrExpired) {
			t.Errorf("over because of %v", context.Cause(l.Context))
		}
		l.renewed(17*time.Second, 10*time.Second)
		if l.Err() == nil {
			t.Error("a renewal has revived what was over")
		}
	})
}

// Who was stopped sees that it is over before any timer has had its turn, in the context and
// in those that are derived from it.
func TestLifetimeOfTheStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &testClock{began: time.Now()}
		l := newLifetime(c.now, 0, 10*time.Second)
		defer l.end(ErrClosed)
		derived, cancel := context.WithCancel(l)
		defer cancel()
		c.stopped = time.Minute
		select {
		case <-l.Done():
		default:
			t.Error("not over")
		}
		if l.Err() == nil || derived.Err() == nil || !errors.Is(context.Cause(derived), ErrExpired) {
			t.Errorf("%v, %v because of %v", l.Err(), derived.Err(), context.Cause(derived))
		}
	})
}

func TestLifetimeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &testClock{began: time.Now()}
		l := newLifetime(c.now, 0, 10*time.Second)
		l.end(ErrClosed)
		l.end(ErrExpired)
		if !errors.Is(context.Cause(l), ErrClosed) || !errors.Is(l.Err(), context.Canceled) {
			t.Errorf("%v because of %v", l.Err(), context.Cause(l))
		}
	})
}

// A clock that stood still for the process ends a lifetime when the timer fires, and not
// before.
func TestLifetimeTimerAndClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &testClock{began: time.Now(), stopped: -time.Second}
		l := newLifetime(c.now, c.now(), 10*time.Second)
		c.stopped -= time.Second // the clock has lost a second against the timer
		time.Sleep(9600 * time.Millisecond)
		synctest.Wait()
		if l.Err() != nil {
			t.Fatal("over a second early by the clock")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if l.Err() == nil {
			t.Fatal("not over")
		}
	})
}

func TestSystemClockRuns(t *testing.T) {
	before := systemClock()
	time.Sleep(time.Millisecond)
	if gone := systemClock() - before; gone < time.Millisecond {
		t.Errorf("a millisecond took %v", gone)
	}
	before = wallClock()
	time.Sleep(time.Millisecond)
	if gone := wallClock() - before; gone < time.Millisecond {
		t.Errorf("a millisecond took %v of the wall clock", gone)
	}
}
